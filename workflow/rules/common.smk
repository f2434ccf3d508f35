"""What every section of the paper uses: the validated configuration, names, and the library's files. No rules."""

import difflib
import os
import sys
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(workflow.basedir)
SPLITS = ["d2p_same", "d2p_reverse", "p2d_same", "p2d_reverse", "both_p2d", "both_d2p"]
RECALL_SPLITS = SPLITS[:4]
RANDOMIZED = [f"{split}_randomized" for split in RECALL_SPLITS]

# Scripts run from a copy elsewhere; this is how they find the library.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def dotted(path):
    """A place in the configuration as one writes it: sampling.steps[2]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def source_of(path):
    """The last file given that sets the key at `path`, or the command line."""
    *given, default = workflow.configfiles
    for file in [*reversed(given), default]:
        value = yaml.safe_load(Path(file).read_text()) or {}
        try:
            for part in path:
                value = value[part]
        except (KeyError, IndexError, TypeError):
            continue
        return os.path.relpath(file)
    return "--config" if path else "config.yaml"


def told(error):
    """A schema error in one line: where, what it is, what is allowed."""
    path = list(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        stray = next(key for key in error.instance if key not in known)
        close = difflib.get_close_matches(str(stray), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{source_of([*path, stray])}: {dotted([*path, stray])} is not a key; {hint}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        allowed = error.schema.get("properties", {}).get(missing, {}).get("description", "see config.yaml")
        return f"{source_of(path)}: {dotted(path)} has no {missing}; it needs one: {allowed}"
    allowed = error.schema.get("description", error.message)
    return f"{source_of(path)}: {dotted(path) or 'the configuration'} is {error.instance!r}; allowed: {allowed}"


def validate_configuration():
    """Stop with one line if anything in the configuration is unknown, of the wrong type or impossible."""
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text())
    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(config),
        key=lambda e: list(map(str, e.path)),
    )
    if errors:
        sys.exit(f"error: {told(errors[0])}")


def library(*modules):
    """Files of the library that a rule's results depend on: imports alone do not trigger a rerun."""
    return [str(ROOT / f"workflow/reversal/{module}.py") for module in modules]


def models_from(base):
    """A pattern for the names of the models that start from this kind of base; matches nothing where there are none."""
    return "|".join(name for name, model in config["models"].items() if model["base"] == base) or "(?!)"


validate_configuration()
# Jobs that train run side by side, one a model and seed, and share the cores.
TRAINING_THREADS = max(1, (workflow.cores or 1) // (len(config["models"]) * len(config["seeds"])))


wildcard_constraints:
    model="|".join(config["models"]),
    seed=r"\d+",
    split="|".join(SPLITS),
