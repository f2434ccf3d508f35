"""The probe: a model's most likely first tokens for facts of its pretraining and for those of the study."""

from pathlib import Path

import pandas as pd

from ..data import generated
from . import evaluation


def make_pretraining_prompts(words, templates, *, people, seed, count):
    """`count` prompts about people of the pretraining biographies, with their answers: [(prompt, answer), …]."""
    lists = generated.read_words(words)
    names = generated.make_names(lists, people, seed=seed, pool=generated.PRETRAINING)[:count]
    descriptions = generated.make_descriptions(lists, people, seed=seed, pool=generated.PRETRAINING)[:count]
    prompts = []
    for i, (name, description) in enumerate(zip(names, descriptions, strict=True)):
        direction, answer_type = list(generated.DIRECTIONS.items())[i % 2]
        path = Path(templates) / f"pretraining_{direction}.txt"
        sentences = generated.read_templates(path, answer_type=answer_type)
        opening = sentences[i % len(sentences)].split("{" + answer_type + "}")[0]
        prompt = opening.replace("{name}", name).replace("{description}", description).rstrip()
        prompts.append((prompt, name if answer_type == "name" else description))
    return prompts


def make_table(net, tokenizer, prompts, *, stage, top, canvas):
    """The `top` most likely first tokens for [(prompt, answer or None), …], in the order of the prompts."""
    texts = [prompt for prompt, _ in prompts]
    table = evaluation.rank_first_tokens(net, tokenizer, texts, top=top, canvas=canvas)
    table = table.merge(pd.DataFrame(prompts, columns=["prompt", "answer"]), on="prompt", how="left")
    table.insert(0, "stage", stage)
    return table
