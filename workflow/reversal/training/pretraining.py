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

TOKENIZER_TEXTS = 100_000  # more do not change the words of a small vocabulary


@dataclass(frozen=True)
class Biographies:
    """The text of pretraining: `rows` sentences about `people` people, from folders of `words` and `templates`.

    With `name_first`, none has the description before the name.
    """

    words: str
    templates: str
    people: int
    rows: int
    seed: int
    name_first: bool = False

    def texts(self):
        """The sentences, in order."""
        templates = generated.read_directions(self.templates, prefix="pretraining_")
        words, counts = generated.read_words(self.words), {"people_count": self.people, "rows": self.rows}
        options = {"seed": self.seed, "name_first": self.name_first}
        return list(generated.make_biographies(words, templates, **counts, **options))


def make_tokenizer(output, biographies, *, size, vocabulary_of=None):
    """Train a tokenizer of at most `size` tokens and save it to the folder `output`, before any network is trained.

    It covers the biographies' words and those of the rows in the file `vocabulary_of`, which the network never sees.
    """
    unseen = [row.text for row in facts.read(vocabulary_of)] if vocabulary_of else []
    sample = replace(biographies, rows=min(biographies.rows, TOKENIZER_TEXTS))
    tokens.train_tokenizer(sample.texts() + unseen, size).save_pretrained(output)


def pretrain(
    output,
    history,
    biographies,
    *,
    tokenizer_folder,
    causal,
    shape,
    recipe,
    checkpoints,
    objective=EVERYWHERE,
    job=None,
):
    """Train a network from scratch on `biographies`; write it to the folder `output` and its losses to `history`.

    Of the `objective`, the noise, its rate and the time conditioning apply; nothing is protected.
    """
    texts = biographies.texts()
    tokenizer = tokens.read_tokenizer(Path(tokenizer_folder) / "tokenizer.json", tokens.EOS)
    if job:
        count = f"{len(texts)} biographies of {biographies.people} people"
        job.log_line(f"{count}, SHA-256 {digest(texts)}; {len(tokenizer)} tokens")
    kind = {"noise": objective.noise, "time_conditioning": objective.time_conditioning, "block_size": objective.block}
    if (objective.noise, objective.time_conditioning, objective.block) == ("mask", "none", None):
        kind = {}  # the defaults are left out of the network's configuration
    net = bases.new_network(tokenizer, causal=causal, shape=shape, seed=biographies.seed, **kind)
    recipe = loop.Recipe(**recipe, seed=biographies.seed)
    losses = loop.fit(
        net.to(network.default_device()),
        tokenizer(texts)["input_ids"],
        recipe,
        objective=objective,
        subword_dropout=tokens.SubwordDropout(tokenizer, recipe.subword_dropout) if recipe.subword_dropout else None,
        checkpoints=checkpoints,
        job=job,
    )
    network.save(net, tokenizer, output)
    write_table(losses, history)
    shutil.rmtree(checkpoints, ignore_errors=True)


def digest(texts):
    """The SHA-256 of a list of texts, one per line."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
