"""Findings: an estimate, its interval, and what the interval allows one to say."""

from ..common.contrasts import verdict


def finding(estimate, low, high):
    """An estimate with the ends of its interval."""
    return {"estimate": float(estimate), "low": float(low), "high": float(high)}


def over_seeds(estimates, lows, highs):
    """The mean over seeds; its interval spans those of all seeds, so that what it excludes every seed excludes."""
    return finding(estimates.mean(), lows.min(skipna=False), highs.max(skipna=False))


def judged(found):
    """The finding with its verdict."""
    return found | {"verdict": verdict(found["low"], found["high"])}
