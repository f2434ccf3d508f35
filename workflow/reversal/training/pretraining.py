"""A base pretrained here, on biographies of people who are in no study."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.files import write_table
from ..data import facts, generated
from ..models import network, tokens
from . import bases, loop
from .objective import EVERYWHERE

TOKENIZER_TEXTS = 100_000  # more do not change which words a small vocabulary holds


@dataclass(frozen=True)
class Biographies:
    """What a base reads: `rows` sentences about `people` people, from folders of `words` and `templates`."""

    words: str
    templates: str
    people: int
    rows: int
    seed: int

    def texts(self):
        """The sentences, in order."""
        sentences = {
            direction: generated.read_templates(Path(self.templates) / f"pretraining_{direction}.txt", answer_type=answer_type)
            for direction, answer_type in generated.DIRECTIONS.items()
        }
        lists = generated.read_words(self.words)
        return list(generated.biographies(lists, sentences, people_count=self.people, rows=self.rows, seed=self.seed))


def tokenizer(output, biographies, *, size, vocabulary_of=None):
    """Leave a tokenizer of at most `size` tokens in the folder `output`, known before anything is trained.

    It knows the biographies' words, and those of the rows of the file `vocabulary_of`, which the network never sees.
    """
    unseen = [row.text for row in facts.read(vocabulary_of)] if vocabulary_of else []
    few = replace(biographies, rows=min(biographies.rows, TOKENIZER_TEXTS))
    tokens.train_tokenizer(few.texts() + unseen, size).save_pretrained(output)


def pretrain(output, history, biographies, *, reader, causal, shape, recipe, checkpoints, aim=EVERYWHERE, job=None):
    """Train a network from scratch on `biographies`; leave it in the folder `output`, its losses in `history`.

    `reader` is the folder of its tokenizer. Of the `Objective` `aim`, the noise, its rate and the time count: nothing
    is protected.
    """
    texts = biographies.texts()
    tokenizer = tokens.read_tokenizer(Path(reader) / "tokenizer.json", tokens.EOS)
    if job:
        told = f"{len(texts)} biographies of {biographies.people} people, SHA-256 {digest(texts)}"
        job.say(f"{told}; {len(tokenizer)} tokens")
    kind = (
        {}
        if (aim.noise, aim.time_conditioning) == ("mask", "none")
        else {"noise": aim.noise, "time_conditioning": aim.time_conditioning}
    )
    net = bases.new(tokenizer, causal=causal, shape=shape, seed=biographies.seed, **kind).to(network.default_device())
    plan = loop.Recipe(**recipe, seed=biographies.seed)
    losses = loop.fit(
        net,
        tokenizer(texts)["input_ids"],
        plan,
        aim=aim,
        cutter=tokens.SubwordDropout(tokenizer, plan.subword_dropout) if plan.subword_dropout else None,
        checkpoints=checkpoints,
        job=job,
    )
    network.save(net, tokenizer, output)
    write_table(losses, history)
    shutil.rmtree(checkpoints, ignore_errors=True)


def digest(texts):
    """The SHA-256 of some texts, a line each."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
