"""The published Reversal Curse set (Berglund et al. 2023, experiment 1): download it and read it as facts and rows.

It has no licence, so it is downloaded or read from a local folder, never shipped. Its rows hold only a prompt and a
completion; the spans of subject and answer are recovered with the templates that the rows were made from.
"""

from pathlib import Path

from ..common.download import fetch
from ..common.files import sha256
from . import facts, rows
from .facts import SPLITS, DataError

COMMIT = "6af5f418755d528304e406361e86477637d21c84"
RAW = f"https://raw.githubusercontent.com/lukasberglund/reversal_curse/{COMMIT}/data"
BASE_URL = f"{RAW}/reverse_experiments"
VERSION = "june_version_7921032488"
_ROWS = {
    "all_prompts_train": "ea7156bb2f46e67ddadb485a7faff23551251b233011b2531ae36a3217f4fae2",
    "both_prompts_test": "6499aebaae627f7f26e6d237ef9b4cc7c8db227a29acc60332b05950ea89b004",
    "d2p_prompts_test": "67705c9ebd77fc030998677acae33af9f22cf4b80bb7443d4ef7e5c9c1d727c4",
    "d2p_reverse_prompts_test": "8c79da9791788ffbe77dc876ae2e34cc00f980e08c946bda188367ae1cd6ea61",
    "d2p_reverse_prompts_test_randomized": "d66943b0b26f1bc4d1c6f9edbecb6ce0e50747d5b4112a70c3cd4c51de2b3b44",
    "p2d_prompts_test": "269fe15363c3bd1cb59cfdf4e6464f35d548d4cb786e6f7b1db84f260788e8f8",
    "p2d_reverse_prompts_test": "963fa595ce19b330cdf07058313f3e8570b57545260256414bcb74a60c959553",
    "p2d_reverse_prompts_test_randomized": "a999f08ba5830b642c204969633a755de78180e6b85a580c7d099be1d6948b64",
}
_TEMPLATES = {
    "d2p": "75c7791407b796f0d127d947ed0d9921b89feab453d5265e7d16fecd5d7fe9d0",
    "p2d": "2eb663dcc2195cbdf4b088c08c302ad26fdae08e560258a8ea74a251ca552fce",
}
FILES = {f"{VERSION}/{name}.jsonl": digest for name, digest in _ROWS.items()} | {
    f"templates/{direction}_templates.txt": digest for direction, digest in _TEMPLATES.items()
}


def download(destination, *, base_url=BASE_URL, files=FILES):
    """Download `files`, {path: SHA-256}, from `base_url` to the same paths under `destination`."""
    for path, digest in files.items():
        fetch(f"{base_url}/{path}", Path(destination) / path, digest)


def read(folder, *, seed=0, verify=True):
    """Read the facts, training rows and {split: rows} of a folder of the published set.

    The template files are in its subfolder `templates` or in the sibling folder of that name. Wrong answers are the
    published ones where there are any (drawn with replacement, so a few are right); the others are drawn with `seed`.
    """
    folder = Path(folder)
    template_folder = folder / "templates" if (folder / "templates").is_dir() else folder.parent / "templates"
    if verify:
        _verify(folder, template_folder)
    templates = rows.read_templates(template_folder, name="{}_templates.txt", placeholder="<%s>")
    train = rows.parse_file(folder / "all_prompts_train.jsonl", templates)
    tests = []
    for file in dict.fromkeys(split.file for split in SPLITS.values()):
        questions = rows.parse_file(folder / f"{file}.jsonl", templates)
        randomized = folder / f"{file}_randomized.jsonl"
        tests += _add_wrong_answers(questions, randomized) if randomized.exists() else questions
    return rows.assemble(train, tests, seed=seed)


def _verify(folder, template_folder):
    """Compare the SHA-256 of each file with the published one."""
    for name, expected in FILES.items():
        version, file = name.split("/")
        path = (folder if version == VERSION else template_folder) / file
        if not path.is_file():
            raise DataError(f"{path}: no such file; the published set has it")
        if (digest := sha256(path)) != expected:
            raise DataError(f"{path}: SHA-256 is {digest}, expected {expected}; it is not the published file")


def _add_wrong_answers(questions, path):
    """The questions with the wrong answers of a randomized file, which has the same prompts in the same order."""
    sentences = facts.load_jsonl(rows.Sentence, path)
    if len(sentences) != len(questions):
        raise DataError(f"{path}: {len(sentences)} rows; the file it randomizes has {len(questions)}")
    for number, (question, sentence) in enumerate(zip(questions, sentences, strict=True), 1):
        if sentence.prompt != question.row.prompt:
            raise DataError(f"{path}:{number}: the prompt differs from line {number} of the file it randomizes")
    return [
        question._replace(wrong=sentence.completion) for question, sentence in zip(questions, sentences, strict=True)
    ]
