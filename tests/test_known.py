"""Networks whose storage is known: what the store reads, that sharing changes no answer, and that a test can tell."""

import numpy as np
import pandas as pd
import pytest
import torch

from reversal.common.errors import UserError
from reversal.data import generated
from reversal.models import network
from reversal.storage import known, scoring, transfer
from reversal.tracing import engine

SETTINGS = known.StoreTraining(
    layer=3, size=48, texts=60, pairings=2, pairs=8, steps=25, learning_rate=0.003, tuning_steps=3
)
PEOPLE, CANVAS = 4, 22


@pytest.fixture(scope="module")
def study(root):
    """A base, its tokenizer, and the facts and rows of a few people."""
    net, tokenizer = network.load(root / "data/base/mdm")
    folders = {"words": root / "data/words", "templates": root / "data/templates"}
    sizes = {"people_per_group": PEOPLE, "train_templates": 3, "test_templates": 2}
    facts, rows, splits = generated.make(**folders, **sizes, seed=1)
    facts = [fact for fact in facts if fact.group == "both"]
    return net, tokenizer, facts, [row for row in rows if row.fact.startswith("both")], splits, folders


@pytest.fixture(scope="module")
def written(study):
    """A network with the people's facts in its store, untrained, and each fact's part of the matrix."""
    net, tokenizer, facts, rows, *_ = study
    net = network.add_store(net, seed=1, layer=3, size=48, matrices=["shared"])
    lm = scoring.LanguageModel(net, tokenizer, CANVAS)
    return lm, known.write_facts(lm, facts, rows, SETTINGS, seed=1)


def encode(lm, rows):
    return torch.tensor([scoring.encode_question(lm, row).ids for row in rows])


@torch.no_grad()
def states(net, ids):
    return network.hidden(net, ids)


def test_the_store_finds_each_subject_and_its_type(study, written):
    lm, _ = written
    for split, kind in (("both_p2d", 0), ("both_d2p", 1)):
        rows = study[4][split]
        start, end, found = lm.net.store.locate(encode(lm, rows))
        assert (found == kind).all()
        for row, *span in zip(rows, start.tolist(), end.tolist(), strict=True):
            assert tuple(span) == known.tokens.encode(lm.tokenizer, row).subject


@pytest.mark.parametrize(
    "sharing", [{"people": 0.0}, {"part": 0.5}, {"people": 0.5}, {"scale": 7.0}, {"people": 0.0, "scale": 3.0}]
)
def test_networks_of_any_sharing_and_scale_compute_the_same_function(study, written, sharing):
    lm, parts = written
    ids = encode(lm, study[4]["both_p2d"] + study[4]["both_d2p"])
    other = known.split_store(lm.net, parts, **sharing)
    torch.testing.assert_close(states(other, ids), states(lm.net, ids), rtol=1e-3, atol=1e-3)
    assert set(other.store.matrices) == (
        {"shared"}
        if sharing.keys() == {"scale"}
        else {"from_names", "from_descriptions"} | ({"shared"} if sharing.get("people") != 0 else set())
    )


@pytest.mark.parametrize(("zeroed", "changed"), [("from_names", "both_p2d"), ("from_descriptions", "both_d2p")])
def test_each_matrix_of_separate_storage_serves_one_direction(study, written, zeroed, changed):
    lm, parts = written
    separate = known.split_store(lm.net, parts, people=0.0)
    with torch.no_grad():
        separate.store.matrices[zeroed].zero_()
    for split in ("both_p2d", "both_d2p"):
        ids = encode(lm, study[4][split])
        assert torch.allclose(states(separate, ids), states(lm.net, ids), atol=1e-3) == (split != changed)


def test_zeroing_each_matrix_is_checked_and_undone(study, written, monkeypatch):
    """An answer counts as given where the network says the same as before."""
    lm, parts = written
    separate = known.split_store(lm.net, parts, people=0.0)

    def says_the_same(net, sequences):
        ids = torch.tensor([sequence.ids for sequence in sequences])
        return torch.isclose(states(net, ids), states(lm.net, ids), atol=1e-3).flatten(1).all(1)

    monkeypatch.setattr(known, "generates_answer", says_the_same)
    split = lm._replace(net=separate)
    found = known.check_store(split, study[4]["both_d2p"], study[4]["both_p2d"]).set_index("zeroed")
    assert found.loc["none"].tolist() == [1, 1]
    assert found.loc["from_names"].tolist() == [1, 0] and found.loc["from_descriptions"].tolist() == [0, 1]
    assert says_the_same(separate, [scoring.encode_question(lm, row) for row in study[4]["both_p2d"]]).all()


def test_a_saved_network_keeps_its_store(study, written, tmp_path):
    lm, parts = written
    half = known.split_store(lm.net, parts, part=0.5)
    network.save(half, lm.tokenizer, tmp_path / "half")
    loaded, _ = network.load(tmp_path / "half", device="cpu")
    ids = encode(lm, study[4]["both_p2d"])
    torch.testing.assert_close(states(loaded, ids), states(half, ids))


def test_training_teaches_a_network_to_read_its_store(study):
    net, tokenizer, *_, folders = study
    templates = {
        direction: generated.read_templates(folders["templates"] / f"{direction}.txt", answer_type=answer_type)[:5]
        for direction, answer_type in generated.DIRECTIONS.items()
    }
    options = {"words": folders["words"], "templates": templates, "canvas": CANVAS, "seed": 1}
    trained = known.train_store(net, tokenizer, SETTINGS, **options)
    sentences = known.Sentences(trained, tokenizer, texts=SETTINGS.texts, **options)
    batch = sentences.draw(4, 8, torch.Generator().manual_seed(9))
    with torch.no_grad():
        losses = known._losses(trained, batch)
        for answer in batch.answers:  # those of the next pair of the same matrix
            answer[1] = answer[1].view(2, 4, 8, -1).roll(1, 2).flatten(0, 2)
        wrong = known._losses(trained, batch)
    assert losses[1] < wrong[1] - 0.5  # names, which come first


def test_an_autoregressive_base_and_texts_of_different_lengths_are_refused(study, root):
    with pytest.raises(UserError, match="autoregressive"):
        known.train_store(
            network.load(root / "data/base/ar")[0], None, SETTINGS, words="", templates={}, canvas=1, seed=1
        )
    with pytest.raises(UserError, match="different numbers of tokens"):
        known._as_tensor([[1, 2], [1]], "names", "cpu")


def test_a_store_is_not_traced_by_an_engine_that_would_leave_it_out(written):
    lm, _ = written
    with pytest.raises(UserError, match="store"):
        engine.trace(lm.net, torch.arange(5), subject=(1, 3), answer={4: 5})


def test_attributions_do_not_depend_on_the_scale_of_the_store_and_gradients_do(study, written):
    lm, parts = written
    rows = [row for row in study[4]["both_p2d"] if row.fact == "both-00"]
    vectors = {}
    for scale in (1.0, 5.0):
        net = known.split_store(lm.net, parts, scale=scale)
        batches = scoring.collate(net, [scoring.encode_question(lm, row) for row in rows])
        matrix = net.store.matrices["shared"]
        [gradient] = torch.autograd.grad(scoring.answer_loss(net, batches), matrix)
        vectors[scale] = gradient, gradient * matrix.detach()
    torch.testing.assert_close(vectors[1.0][0], 5 * vectors[5.0][0], rtol=2e-2, atol=1e-6)
    torch.testing.assert_close(vectors[1.0][1], vectors[5.0][1], rtol=2e-2, atol=1e-6)


def make_tables(transfers, *, width=0.1, n=12):
    """Tables of edits and gradients in which every test of a model shows its transfer, give or take `width`."""
    edits, gradients = [], []
    for model, value in transfers.items():
        ends = {"transfer": value, "transfer_low": value - width, "transfer_high": value + width, "n": n}
        run = {"model": model, "seed": 1, "stage": "seed_1", "group": "both", "edited": "p2d", **ends}
        for conditions in transfer.TESTS.values():
            if "measure" in conditions:
                gradients.append(run | conditions | {"part": "all", "against": "reverse"})
            else:
                edits.append(run | conditions | {"about": "difference", "question": "reverse"})
                recall = {"about": "fact", "question": "paraphrase", "answer": "old", "recall_after": value}
                edits.append(run | conditions | recall | {"transfer": np.nan})
    return pd.DataFrame(edits), pd.DataFrame(gradients)


def test_a_test_has_power_where_it_tells_shared_from_separate_storage():
    stores = {
        "shared": {"people": 1.0, "part": 1.0, "scale": 3.0},
        "separate": {"people": 0.0, "part": 1.0, "scale": 3.0},
        "same": {"people": 1.0, "part": 1.0, "scale": 9.0},
        "same-separate": {"people": 0.0, "part": 1.0, "scale": 9.0},
    }
    tables = make_tables({"shared": 0.5, "separate": 0.0, "same": 0.01, "same-separate": 0.0, "mdm": 0.1})
    table = transfer.summarize_tests(*tables, stores).set_index(["model", "test"])
    assert len(table) == 5 * len(transfer.TESTS)
    assert table.loc["shared"].power_30.gt(0.99).all()
    assert table.loc["same"].power_30.lt(0.1).all()
    assert table.loc[["separate", "mdm"]].power_30.isna().all()
    assert np.isnan(table.loc[("mdm", "knock-out"), "people"])
    assert table.loc[("shared", "knock-out"), "recall"] == 0.5
