"""Networks whose storage is known: shared, separate, or in part. Tests of storage are tried on them first.

A masked diffusion base gets an associative store (`models.store`) and learns to use it, in three steps.

1. `train_store`: every batch draws new pairs of names and descriptions. Their codes, from one set of sentences, make
   the store's matrix, a sum of outer products; the network has to answer from it in other sentences. No pair comes
   back, so that a fact can be nowhere but in the matrix.
2. `write_facts`: the study's facts become a matrix in the same way, and that matrix alone is tuned until the network
   recalls them.
3. `split_store`: the matrix M is divided among the store's matrices. Shared storage has M once, separate storage twice,
   once for each direction. All these networks compute the same function: nothing that only reads states can tell them
   apart.
"""

import copy
import math
import random
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pandas as pd
import torch
from torch import nn

from ..common.errors import UserError
from ..data import facts as fact_files
from ..data import generated
from ..models import network, tokens
from ..models.store import DESCRIPTION, NAME, Store, normalise
from .scoring import answer_loss, collate, device_of, encode_question, generates_answer

CHECK_COLUMNS = ("zeroed", "names", "descriptions")


@dataclass(frozen=True)
class StoreTraining:
    """How a network learns to use its store: the names and meanings of `store` in the configuration."""

    layer: int  # the block after which the store is read
    size: int  # of a code
    texts: int  # names, and as many descriptions, from which pairs are drawn
    pairings: int  # independent matrices in a batch
    pairs: int  # facts in a matrix
    steps: int
    learning_rate: float  # of the store; half of it for the network
    tuning_steps: int  # at most, of the study's matrix alone


class Sentences:
    """Batches of sentences about pairs drawn anew, made on the network's device.

    A batch has two sets of the same pairs in both directions: rows are ordered as (set, direction, pairing, pair).
    """

    def __init__(self, net, tokenizer, *, words, templates, texts, canvas, seed):
        """`templates` is {direction: templates}; names and descriptions are of the pretraining pool."""
        device = device_of(net)
        lists = generated.read_words(words)
        make = (generated.make_names, generated.make_descriptions)
        self.names, self.descriptions = (
            function(lists, texts, seed=seed, pool=generated.PRETRAINING) for function in make
        )
        self.device, self.mask = device, network.mask_id(net)
        # A name is encoded in two ways: as the first word of a sentence, and after a space.
        forms = [[tokenizer(space + name)["input_ids"] for space in ("", " ")] for name in self.names]
        self.name_ids = _as_tensor(forms, "names", device)
        forms = [tokenizer(" " + text)["input_ids"] for text in self.descriptions]
        self.description_ids = _as_tensor(forms, "descriptions", device)
        self.templates = [
            self._encode_templates(tokenizer, lines, generated.DIRECTIONS[direction], canvas)
            for direction, lines in templates.items()
        ]

    def _encode_templates(self, tokenizer, lines, answer_type, canvas):
        """Each template as a row of ids, with the positions of name and description, and the form of the name."""
        fact = SimpleNamespace(id="example", name=self.names[0], description=self.descriptions[0])
        rows = []
        for line in lines:
            encoded = tokens.encode(tokenizer, generated.fill_template(line, 0, fact, answer_type=answer_type))
            name, description = (
                (encoded.subject, encoded.answer) if answer_type == "description" else (encoded.answer, encoded.subject)
            )
            if line.count("{name}") == line.count("{description}") == 1 and len(encoded.ids) < canvas:
                padding = [tokenizer.eos_token_id] * (canvas - len(encoded.ids))
                form = int(encoded.ids[name[0]] != self.name_ids[0, 0, 0])
                rows.append((encoded.ids + padding, name[0], description[0], form))
        return [torch.tensor(column, device=self.device) for column in zip(*rows, strict=True)]

    def draw(self, pairings, pairs, generator):
        """A batch of `pairings` matrices of `pairs` facts: ids (B, T), subjects (start, end, type of each row), and for
        each direction the positions, tokens and masks of its answers."""
        count = pairings * pairs
        options = {"device": self.device, "generator": generator}
        name, description = (
            torch.rand(pairings, len(self.names), **options).topk(pairs, 1).indices.flatten() for _ in range(2)
        )
        parts = []
        for is_second in (False, True):
            for direction, (rows, name_start, description_start, form) in enumerate(self.templates):
                template = torch.randint(len(rows), (count,), **options)
                texts = self.name_ids[name, form[template]], self.description_ids[description]
                at = [
                    start[template][:, None] + torch.arange(text.shape[1], device=self.device)
                    for start, text in zip((name_start, description_start), texts, strict=True)
                ]
                ids = rows[template].scatter(1, at[0], texts[0]).scatter(1, at[1], texts[1])
                subject, answer = (NAME, DESCRIPTION) if direction == 0 else (DESCRIPTION, NAME)
                # All answers of the first set are masked, and half of the second's: codes are read with none visible.
                rate, whole = torch.rand(2, count, 1, **options)
                rate = torch.where((whole < 0.5) | (not is_second), 1.0, rate)
                masked = torch.rand(texts[answer].shape, **options) < rate
                masked[:, 0] |= ~masked.any(1)
                ids = ids.scatter(1, at[answer], torch.where(masked, self.mask, texts[answer]))
                kind = torch.full((count,), subject, device=self.device)
                parts.append((ids, at[subject][:, 0], at[subject][:, -1] + 1, kind, at[answer], texts[answer], masked))
        columns = [torch.cat(column) for column in list(zip(*parts, strict=True))[:4]]
        answers = [
            [torch.cat([parts[direction][i], parts[direction + 2][i]]) for i in (4, 5, 6)] for direction in range(2)
        ]
        return SimpleNamespace(ids=columns[0], subjects=columns[1:], answers=answers, shape=(2, 2, pairings, pairs))


def _as_tensor(ids, what, device):
    """Token ids as a tensor; all texts must have as many tokens."""
    try:
        return torch.tensor(ids, device=device)
    except ValueError:
        raise UserError(f"the {what} have different numbers of tokens; a store needs texts of one length") from None


@contextmanager
def _paired(store, batch):
    """Read a batch of `Sentences` with matrices made of its own codes: each set reads what the other has written."""

    def read(codes, kind):
        name, description = codes.view(*batch.shape, -1).unbind(1)  # (2, pairings, pairs, m)
        matrix = torch.einsum("spai,spaj->spij", description, name).flip(0)
        described = torch.einsum("spij,spaj->spai", matrix, name)
        named = torch.einsum("spij,spai->spaj", matrix, description)
        return torch.stack([described, named], 1).reshape(codes.shape)

    store.read, store.locate = read, lambda ids: batch.subjects
    try:
        yield
    finally:
        del store.read, store.locate


def _losses(net, batch):
    """The mean loss of the masked tokens of descriptions and of names (2,), in nats."""
    device = batch.ids.device
    losses = []
    with _paired(net.store, batch), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = network.hidden(net, batch.ids)
        states = states.view(2, 2, -1, *states.shape[1:])
        for direction, (position, token, masked) in enumerate(batch.answers):
            answered = states[:, direction].flatten(0, 1)
            answered = answered.gather(1, position[..., None].expand(-1, -1, answered.shape[-1]))
            logits = network.logits(net, answered).float().flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, token.flatten(), reduction="none")
            losses.append((loss * masked.flatten()).sum() / masked.sum())
    return torch.stack(losses)


@torch.no_grad()
def _start(net, sentences, settings, generator):
    """Start codes from whitened mean states, and decoders from the head's rows of the words that a code stands for.

    From a random start the network does not learn to use the store.
    """
    batch = sentences.draw(max(1, settings.texts * 3 // 4 // settings.pairs), settings.pairs, generator)
    with _paired(net.store, batch):
        network.hidden(net, batch.ids)
    means = net.store.means.view(2, 2, -1, net.store.means.shape[-1])
    head = net.get_output_embeddings().weight * net.model.norm.weight
    decoders = []
    for kind in (NAME, DESCRIPTION):
        encoder, states = net.store.encoders[kind], means[:, kind].flatten(0, 1)
        center = states.mean(0)
        values, vectors = torch.linalg.eigh((states - center).T @ (states - center) / len(states))
        whiten = (vectors * values.clamp(min=1e-3 * values.max()).rsqrt()).T
        width, size = len(center), settings.size
        square = torch.randn(max(width, size), max(width, size), device=states.device, generator=generator)
        rotation = torch.linalg.qr(square)[0][:size, :width] * math.sqrt(size / width)
        encoder.linear.weight.copy_(rotation @ whiten)
        encoder.linear.bias.copy_(-rotation @ whiten @ center)
        codes = encoder(states)
        token = batch.answers[1 - kind][1]  # descriptions are the answers of the first direction
        goal = head[token].sum(1)
        goal = (goal - goal.mean(0)) / goal.std()
        ridge = 0.03 * len(codes) * torch.eye(size, device=codes.device)
        decoders.append(torch.linalg.solve(codes.T @ codes + ridge, codes.T @ goal).T)
    trial = sentences.draw(max(1, 192 // settings.pairs), settings.pairs, generator)
    losses = {}
    for gain in (0.5, 1, 2, 4, 8, 16):
        for decoder, weight in zip(net.store.decoders, decoders, strict=True):
            decoder.weight.copy_(gain * weight)
        losses[gain] = _losses(net, trial).tolist()
    for kind, (decoder, weight) in enumerate(zip(net.store.decoders, decoders, strict=True)):
        gain = min(losses, key=lambda gain: losses[gain][1 - kind])
        decoder.weight.copy_(gain * weight)


def train_store(net, tokenizer, settings, *, words, templates, canvas, seed, job=None):
    """Give a masked diffusion network a store, and train both on pairs drawn anew: a network with an empty store."""
    if not network.is_diffusion(net):
        raise UserError("a store is read at masks; an autoregressive network has none")
    net = network.add_store(net, seed=seed, layer=settings.layer, size=settings.size, matrices=["shared"])
    generator = torch.Generator(device_of(net)).manual_seed(seed)
    source = {"words": words, "templates": templates, "texts": settings.texts}
    sentences = Sentences(net, tokenizer, **source, canvas=canvas, seed=seed)
    _start(net, sentences, settings, generator)
    own = [parameter for name, parameter in net.store.named_parameters() if not name.startswith("matrices")]
    network_weights = [parameter for name, parameter in net.named_parameters() if not name.startswith("store.")]
    groups = [{"params": own, "factor": 1.0}, {"params": network_weights, "factor": 0.5}]
    options = {"betas": (0.9, 0.98), "weight_decay": 0.01, "fused": device_of(net).type == "cuda"}
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, **options)
    with job.progress(settings.steps, "store", "steps") if job else nullcontext() as progress:
        for step in range(settings.steps):
            done = step / settings.steps
            schedule = min(1, (step + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * group["factor"] * schedule
            description, name = _losses(net, sentences.draw(settings.pairings, settings.pairs, generator))
            optimizer.zero_grad()
            (description * 7 / 4 + name).backward()  # a description has more tokens, and is learned later
            nn.utils.clip_grad_norm_([*own, *network_weights], 1.0)
            optimizer.step()
            if progress:
                progress.advance()
    return net.eval()


def write_facts(lm, facts, rows, settings, *, seed):
    """Write `facts` into the shared matrix of a network with an empty store, from their training `rows`.

    Returns each fact's part of the matrix before it was tuned: {fact: (m, m)}.
    """
    store = lm.net.store
    rows = [fact_files.add_full_stop(row) for row in rows]
    names = {fact.id: fact.name for fact in facts}
    store.subjects = _encode_subjects(lm.tokenizer, rows, names)
    lm.net.config.store["subjects"] = store.subjects
    owners = {fact.id: i for i, fact in enumerate(facts)}
    totals = torch.zeros(2, len(facts), settings.size, device=device_of(lm.net))
    rows = [row for row in rows if row.fact in owners]
    questions = [encode_question(lm, row, owner=owners[row.fact]) for row in rows]
    with torch.no_grad():
        for batch in collate(lm.net, questions):
            network.hidden(lm.net, batch.ids)
            kind = store.locate(batch.ids)[2]
            totals.index_put_((kind, batch.owner), store.codes, accumulate=True)
        name, description = normalise(totals)
        parts = torch.einsum("ai,aj->aij", description, name) / settings.size
        store.matrices["shared"].copy_(parts.sum(0))
    random.Random(seed).shuffle(questions)
    batches = collate(lm.net, questions)
    lm.net.requires_grad_(False)
    matrix = store.matrices["shared"].requires_grad_(True)
    optimizer = torch.optim.Adam([matrix], lr=2e-4)
    losses = []
    for step in range(settings.tuning_steps):
        loss = answer_loss(lm.net, [batches[step % len(batches)]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step >= len(batches) and sum(losses[-len(batches) :]) / len(batches) < 0.03:
            break
    lm.net.requires_grad_(True)
    return dict(zip(owners, parts, strict=True))


def _encode_subjects(tokenizer, rows, names):
    """The token sequences of names and of descriptions in `rows`: [[ids, …], [ids, …]]."""
    subjects = [set(), set()]
    for row in rows:
        encoded = tokens.encode(tokenizer, row)
        start, end = encoded.subject
        subjects[NAME if row.subject_text == names.get(row.fact) else DESCRIPTION].add(tuple(encoded.ids[start:end]))
    return [sorted(map(list, texts)) for texts in subjects]


def split_store(net, parts, *, people=1.0, part=1.0, scale=1.0):
    """The same function with other storage: a network that shares `part` of each fact of a share of the `people`.

    `parts` is from `write_facts`. The rest is in two matrices, one for each direction. All are multiplied by `scale`.
    """
    matrix = net.store.matrices["shared"].detach()
    chosen = sorted(parts, key=lambda fact: generated.digest("shared", fact))[: round(people * len(parts))]
    if people * part == 1:
        matrices = {"shared": matrix}
    elif people * part == 0:
        matrices = {"from_names": matrix, "from_descriptions": matrix}
    else:
        tuned = matrix - sum(parts.values())  # belongs to no fact
        shared = part * (sum(parts[fact] for fact in chosen) + people * tuned)
        own = matrix - shared
        matrices = {"shared": shared, "from_names": own, "from_descriptions": own}
    split = copy.deepcopy(net)
    split.config.store["matrices"] = list(matrices)
    split.store = Store(net.config.hidden_size, **split.config.store).to(matrix.device)
    state = {name: value for name, value in net.store.state_dict().items() if not name.startswith("matrices")}
    split.store.load_state_dict(state, strict=False)
    with torch.no_grad():
        for name, values in matrices.items():
            split.store.matrices[name].copy_(scale * values)
    return split.eval()


def check_store(lm, name_rows, description_rows):
    """Recall with each of the store's matrices set to 0: a table with CHECK_COLUMNS, first with none set to 0."""
    matrices = lm.net.store.matrices
    original = {name: matrix.detach().clone() for name, matrix in matrices.items()}
    records = []
    for zeroed in ("none", *matrices):
        with torch.no_grad():
            if zeroed != "none":
                matrices[zeroed].zero_()
            recall = [
                generates_answer(lm.net, [encode_question(lm, row) for row in rows]).double().mean().item()
                for rows in (name_rows, description_rows)
            ]
            if zeroed != "none":
                matrices[zeroed].copy_(original[zeroed])
        records.append((zeroed, *recall))
    return pd.DataFrame(records, columns=CHECK_COLUMNS)
