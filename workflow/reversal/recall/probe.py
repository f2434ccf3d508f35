"""What comes first to a model's mind: prompts about facts it may have been pretrained on, and about the study's."""

from pathlib import Path

import pandas as pd

from ..data import generated
from . import evaluation


def pretraining_prompts(words, templates, *, people, seed, count):
    """Prompts about people of the pretraining biographies with their answers: [(prompt, answer), …]."""
    lists = generated.read_words(words)
    names = generated.people(lists, people, seed=seed, of=generated.PRETRAINING)[:count]
    told = generated.descriptions(lists, people, seed=seed, of=generated.PRETRAINING)[:count]
    prompts = []
    for i, (name, description) in enumerate(zip(names, told, strict=True)):
        direction, asked = list(generated.DIRECTIONS.items())[i % 2]
        sentences = generated.read_templates(Path(templates) / f"pretraining_{direction}.txt", answer_type=asked)
        opening = sentences[i % len(sentences)].split("{" + asked + "}")[0]
        filled = opening.replace("{name}", name).replace("{description}", description).rstrip()
        prompts.append((filled, name if asked == "name" else description))
    return prompts


def table(net, tokenizer, prompts, *, stage, top, canvas):
    """The likeliest first tokens for [(prompt, answer or None), …], in the order of the prompts."""
    found = evaluation.first_tokens(net, tokenizer, [prompt for prompt, _ in prompts], top=top, canvas=canvas)
    answers = pd.DataFrame(prompts, columns=["prompt", "answer"])
    found = found.merge(answers, on="prompt", how="left")
    found.insert(0, "stage", stage)
    return found
