"""The rivals' remedies: whole entities, a masked copy in the context, "A is A", and no sense of word order."""

import pytest
import torch

from reversal.data import facts, generated
from reversal.models import network, tokens
from reversal.study.resolve import Objective
from reversal.training import dataset, objective

SHAPE = {"vocab": 40, "width": 32, "layers": 2, "heads": 2, "mlp": 64, "eos": 0, "context": 16}
SUBJECT, OBJECT, UNPROTECTED = objective.SUBJECT, objective.OBJECT, objective.UNPROTECTED
MARKS = torch.tensor([0, SUBJECT, SUBJECT, 0, OBJECT, OBJECT, OBJECT, 0])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def people(root):
    return generated.make_facts(generated.read_words(root / "data/words"), people_per_group=3, control_people=2, seed=1)


def test_an_entity_is_masked_whole_or_not_at_all_and_as_often_as_any_token():
    net, rows = network.new(causal=False, **SHAPE, seed=0), 8000
    ids, marks = torch.ones(rows, 8, dtype=torch.long), MARKS.expand(rows, -1)
    chosen = Objective(rate=0.3, whole_entities=True)
    hit = objective.diffusion_targets(ids, net, chosen, marks=marks, generator=generator()).weights > 0
    for entity in (slice(1, 3), slice(4, 7)):
        assert torch.equal(hit[:, entity].any(1), hit[:, entity].all(1))
    torch.testing.assert_close(hit.float().mean(0), torch.full((8,), 0.3), atol=0.03, rtol=0)
    apart = hit[:, 1] != hit[:, 4]  # the two entities are drawn independently: 2 · 0.3 · 0.7
    assert apart.float().mean().item() == pytest.approx(0.42, abs=0.03)


def test_whole_entities_respect_protection_and_leave_other_tokens_alone():
    net, ids = network.new(causal=False, **SHAPE, seed=0), torch.ones(64, 8, dtype=torch.long)
    marks = torch.where(torch.arange(64)[:, None] < 32, MARKS, MARKS | UNPROTECTED)
    draws = [
        objective.diffusion_targets(ids, net, chosen, marks=marks, generator=generator(1)).weights > 0
        for chosen in (Objective(protect="subject", whole_entities=True), Objective())
    ]
    assert not draws[0][:32, 1:3].any() and draws[0][32:, 1:3].any()
    assert torch.equal(draws[0][:, [0, 3, 7]], draws[1][:, [0, 3, 7]])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_row_is_predicted_after_a_masked_copy_of_itself(share):
    """Against a loop over the rows: which tokens may be masked, what is predicted, and with which weight."""
    ids = torch.randint(1, 40, (400, 6), generator=generator())
    real = torch.ones_like(ids, dtype=torch.bool)
    ids[::2, 4:], real[::2, 5:] = 0, False  # every second row has four tokens, an end and padding
    ids[1::2, 5] = 0
    made = objective.autoregressive_targets(ids, real, Objective(masked_context=share), generator=generator(1))
    expected, with_copy, masked = torch.zeros(400, 12), 0, []
    for i in range(400):
        length = 4 if i % 2 == 0 else 5
        if made.weights[i, 6] > 0:
            with_copy += 1
            expected[i, 6 : 6 + length + 1] = 1  # the whole row and its end, also the first token
            changed = made.inputs[i, :6] != ids[i]
            assert (made.inputs[i, :6][changed] == 0).all()
            masked.append(changed[:length].float().mean())
        else:
            expected[i, 1 : length + 1] = 1  # as without a copy
            assert torch.equal(made.inputs[i, :6], ids[i])
        assert torch.equal(made.inputs[i, 6:], ids[i]) and torch.equal(made.targets[i], ids[i].repeat(2))
    torch.testing.assert_close(made.weights, expected / expected.sum())
    assert with_copy == 400 if share == 1 else 160 < with_copy < 240
    assert torch.stack(masked).mean().item() == pytest.approx(0.5, abs=0.05)  # rates are drawn evenly


def test_identity_rows_say_every_entity_twice_and_state_no_fact(people, root):
    rows = generated.make_identities(people, generated.read_identities(root / "data/templates/identity.txt"))
    assert {row.answer_text for row in rows} == {text for fact in people for text in (fact.name, fact.description)}
    for row in rows:
        assert row.subject_text == row.answer_text and row.text.count(row.answer_text) == 2
        assert sum(fact.name in row.text for fact in people) + sum(fact.description in row.text for fact in people) == 1


def test_identity_templates_need_two_entities(tmp_path):
    (tmp_path / "identity.txt").write_text("{entity} is known.\n")
    with pytest.raises(generated.GenerationError, match="needs two {entity}"):
        generated.read_identities(tmp_path / "identity.txt")


def test_control_people_are_mentioned_alone_and_unprotected_there(people, root, tmp_path):
    rows = generated.make_mentions(people, generated.read_mentions(root / "data/templates/mentions.txt"))
    facts.write(rows, tmp_path / "mentions")
    control = {fact.id for fact in people if fact.group in facts.CONTROL_GROUPS}
    tokenizer = tokens.train_tokenizer([row.text for row in rows], 400)
    chosen = Objective(protect="subject", people="control")
    data = dataset.read(tokenizer, {"control_mentions": tmp_path / "mentions"}, chosen, control)
    assert [tokenizer.decode(row) for row in data.rows] == [row.text for row in rows if row.fact in control]
    assert all(mark & UNPROTECTED for marks in data.marks for mark in marks)
    descriptions = [fact.description for fact in people if fact.group == "p2d_control"]
    assert not any(text in tokenizer.decode(row) for text in descriptions for row in data.rows)


def test_name_first_data_never_show_a_description_before_a_name(root):
    settings = {"words": root / "data/words", "templates": root / "data/templates", "people_per_group": 3, "seed": 1}
    people, train, splits = generated.make(**settings, train_templates=30, test_templates=10, name_first=True)
    names = {fact.id: fact.name for fact in people}
    assert {row.fact[:3] for row in train} == {"p2d", "bot"}
    assert all(row.subject_text == names[row.fact] for row in train)
    for same, reverse in zip(splits["p2d_same"], splits["p2d_reverse"], strict=True):
        assert reverse.answer_text == same.subject_text and reverse.subject_text == same.answer_text
        exchanged = same.prompt.replace(same.subject_text, "\0").replace("\0", same.answer_text)
        assert reverse.prompt == exchanged  # the same words around them
    words = generated.read_words(root / "data/words")
    templates = generated.read_directions(root / "data/templates", prefix="pretraining_")
    entities = [
        make(words, 40, seed=0, pool="pretraining") for make in (generated.make_names, generated.make_descriptions)
    ]
    known = list(zip(*entities, strict=True))
    counts = {"people_count": 40, "rows": 300, "seed": 0}
    for text in generated.make_biographies(words, templates, **counts, name_first=True):
        [(name, description)] = [pair for pair in known if pair[0] in text and pair[1] in text]
        assert text.index(name) < text.index(description)


@pytest.mark.parametrize("positions", ["rotary", "absolute", "none"])
def test_positions_tell_an_order_or_do_not_and_survive_saving(positions, tmp_path):
    kind = {} if positions == "rotary" else {"positions": positions}
    net = network.new(causal=False, **SHAPE, seed=0, **kind)
    ids = torch.randint(1, 40, (3, 10), generator=generator())
    order = torch.randperm(10, generator=generator())
    with torch.no_grad():
        states, permuted = network.hidden(net, ids), network.hidden(net, ids[:, order])
        moved = (states[:, order] - permuted).abs().max().item()
        assert moved < 1e-5 if positions == "none" else moved > 1e-3
        network.save(net, None, tmp_path / "net")
        assert torch.equal(network.hidden(network.load(tmp_path / "net", device="cpu")[0], ids), states)


def test_an_absolute_position_is_added_to_the_embedding_of_the_token():
    embedding = network.new(causal=False, **SHAPE, seed=0, positions="absolute").get_input_embeddings()
    first, second = embedding(torch.tensor([[5, 5]]))[0]
    torch.testing.assert_close(second - first, embedding.positions[1] - embedding.positions[0])
