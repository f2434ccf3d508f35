"""What lifts the curse: the control within the study's own network, and the objectives of a run kept with the paper."""

import math

from ..figures.objectives import called, predicted_from_object
from ..figures.read import last
from .findings import finding, judged


def objectives(sources):
    """The control within one network; and, where such runs are kept, what their objectives and passes recall."""
    kept = {name: sources.taught.get(name) for name in ("objectives", "epochs")}
    return {"control": _control(sources), "kept": _kept(kept["objectives"]), "passes": _passes(kept["epochs"])}


def _control(sources):
    """Recall of the first diffusion model, of people whose subject was masked in training and of those protected.

    None where nobody was protected, or everybody.
    """
    own = last(sources.tables["objectives"])
    own = own[own.model == sources.first("diffusion")]
    if own.protected.nunique() < 2:
        return None
    found = {"people": int(own[own.protected].groupby("split").facts.max().max())}
    for protected, name in ((False, "free"), (True, "protected")):
        found[name] = {
            row.split: finding(row.accuracy, row.ci_low, row.ci_high)
            | {"log_ratio": judged(finding(row.log_ratio, row.log_ratio_low, row.log_ratio_high))}
            for row in own[own.protected == protected].itertuples()
        }
    apart = (
        found["free"][split]["low"] > found["protected"][split]["high"] for split in ("p2d_reverse", "d2p_reverse")
    )
    return found | {"clear": all(apart)}


def _kept(table):
    """Of a table of objectives: recall in reverse where the subject is predicted, where it is not, and by exposure."""
    if table is None:
        return None
    rows = last(table)
    rows = rows[rows.trained == "reverse"]
    rows = rows.assign(predicted=[predicted_from_object(row) for row in rows.itertuples()])
    found = {"objectives": int(rows.model.nunique()), "seeds": int(rows.seeds.max())}
    for name, wanted in (("predicted", True), ("never", False)):
        own = rows[[one is wanted for one in rows.predicted]]
        worst, best = own.loc[own.accuracy.idxmin()], own.loc[own.accuracy.idxmax()]
        found[name] = {"count": len(own), "least": _one(worst), "most": _one(best), "log_ratio": _likelier(own)}
    exposures = rows[(rows.exposure > 0) & (rows.people == "all")].sort_values("exposure")
    found["exposures"] = [
        {"exposure": exposure} | {row.answer_type: finding(row.accuracy, row.ci_low, row.ci_high) for row in own.itertuples()}
        for exposure, own in exposures.groupby("exposure")
    ]
    found["changes"] = _changes(last(table))
    return found


def _one(row):
    return finding(row.accuracy, row.ci_low, row.ci_high) | {"called": called(row), "answer_type": row.answer_type}


def _likelier(rows):
    """In how many of the rows the right answer is clearly likelier than another person's, or less; and the median.

    `where` has the objectives for which it is likelier, with the most nats; `least` the most nats of those below.
    """
    verdicts = [
        judged(finding(row.log_ratio, row.log_ratio_low, row.log_ratio_high))["verdict"] for row in rows.itertuples()
    ]
    above, below = (rows[[verdict == way for verdict in verdicts]] for way in ("more", "less"))
    found = {"median": rows.log_ratio.median(), "more": verdicts.count("more"), "less": verdicts.count("less")}
    where = list(dict.fromkeys(called(row) for row in above.itertuples()))
    most, least = (part.log_ratio.abs().max() if len(part) else None for part in (above, below))
    return found | {"where": where, "most": most, "least": least}


def _changes(rows):
    """Of networks that can take a token back, how many they changed, and to what."""
    own = rows[(rows.noise == "uniform") & (rows.changed > 0)]
    if own.empty:
        return None
    return {"changed": int(own.changed.sum()), "better": int(own.better.sum()), "worse": int(own.worse.sum())}


def _passes(table):
    """Of a table of runs: recall and held-out loss by passes over the data.

    In reverse also by `shapes` of networks, the smallest first, and whether the network was `told` the time.
    """
    if table is None:
        return None
    rows = last(table)
    rows = rows[~rows.protected].assign(shaped=lambda table: table.model.str.contains("small|middle|large"))
    reverse = rows[rows.trained == "reverse"]
    sizes = reverse[reverse.shaped].groupby(["width", "layers", "family"]).accuracy.mean().unstack("family")
    found = {"shapes": [{"layers": layers, "width": width, **row} for (width, layers), row in sizes.iterrows()]}
    timed = rows[rows.time_conditioning != "none"]
    if len(timed):
        alike = reverse[~reverse.shaped & (reverse.family == "diffusion") & reverse.epochs.isin(timed.epochs)]
        found["told"] = {name: own.accuracy.mean() for name, own in alike.groupby("time")}
    rows = rows[(rows.time_conditioning == "none") & ~rows.shaped]
    found |= {"passes": sorted(map(int, rows.epochs.unique())), "seeds": int(rows.seeds.max())}
    for family, own in rows.groupby("family"):
        same, reverse = (own[own.trained == trained].groupby("epochs") for trained in ("same", "reverse"))
        loss = -same.log_likelihood.mean()
        found[family] = {
            "same": {int(n): share for n, share in same.accuracy.mean().items()},
            "reverse": {int(n): share for n, share in reverse.accuracy.mean().items()},
            "loss": {int(n): value for n, value in loss.items()},
            "best": int(loss.idxmin()),
        }
    losses = [found[family]["loss"] for family in ("diffusion", "autoregressive")]
    ahead = [
        n
        for n in found["passes"]
        if all(losses[0][later] < losses[1][later] for later in found["passes"] if later >= n)
    ]
    found["overtakes"] = min(ahead, default=None)
    flops = rows.groupby(["epochs", "family"]).flops.mean().unstack()
    ratio = (flops["diffusion"] / flops["autoregressive"]).mean() if flops.shape[1] == 2 else math.nan
    return found | {"flops_ratio": ratio}
