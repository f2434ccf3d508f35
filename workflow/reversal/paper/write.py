"""Files in, files out: what each rule of the paper reads and writes."""

import json
import shutil
from pathlib import Path

from ..common.files import atomic, sha256
from ..tracing import files as trace_files
from . import bibliography, explorer, numbers, page, post, provenance, sortable, sources


def numbers_file(given, output, *, config, trained):
    """Compute all numbers; `given` names the sources, `trained` names like "mdm/seed_1"."""
    names = [_trained(name) for name in trained]
    found = sources.read(
        config,
        tables=_by_stem(given.tables),
        models={_model(path): path for path in given.models},
        bases={_model(path): path for path in given.bases},
        shipped=given.shipped,
        histories=dict(zip(names, given.histories, strict=True)),
        data=_by_stem(given.data),
        published=given.published,
        kept=[Path(path).parent for path in given.kept if path.endswith("numbers.json")],
        taught=given.taught,
    )
    _write(json.dumps(numbers.compute(found), indent=1, ensure_ascii=False) + "\n", output)


def explorer_file(given, output, *, models, steps, max_facts):
    """Choose what the explorer shows; `models` has each model's family, `given.traces` are folders of splits."""
    folders = {
        (Path(trained).parent.name, split.name): split for trained in given.traces for split in Path(trained).iterdir()
    }
    traced = {key: folder for key, folder in folders.items() if (folder / trace_files.TIME).is_file()}
    made = explorer.build(
        models,
        {fact["id"]: fact["name"] for fact in sources.lines(given.facts)},
        {Path(path).parent.name: sources.lines(path) for path in given.completions},
        {key: trace_files.read(folder) for key, folder in traced.items()},
        {key: trace_files.read_time(folder) for key, folder in traced.items()},
        steps=steps,
        max_facts=max_facts,
    )
    _write(explorer.dump(made), output)


def post_files(given, output, *, config, makers, root):
    """The Markdown of the post with its images, the tables that its claims rest on, and its bibliography."""
    material = _material(given, config, makers, root)
    body, labels = post.write(given.template, post.AlFolio(material.paper), material, given.bibliography)
    evidence = [file for file in given.tables if f"tables/{Path(file).name}" in labels.evidence]
    for files, folder in ((given.figures, Path(output.images)), (evidence, Path(output.tables))):
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / Path(file).name)
    shutil.copyfile(given.bibliography, output.bibliography)
    _write(post.al_folio(body, material.paper), output.post)


def page_file(given, output, *, config, makers, root):
    """The page that stands alone."""
    material = _material(given, config, makers, root)
    body, labels = post.write(given.template, post.Page(material.paper), material, given.bibliography)
    made = page.page(
        given.page,
        body,
        material=material,
        labels=labels,
        data=json.loads(Path(given.explorer).read_text(encoding="utf-8")),
        style=Path(given.style).read_text(encoding="utf-8"),
        script=Path(given.script).read_text(encoding="utf-8"),
    )
    _write(made, output)


def sortable_files(given, output):
    """A page for each table of the report."""
    for table, made in zip(given.tables, output, strict=True):
        _write(sortable.page(given.template, table), made)


def _material(given, config, makers, root):
    figures = _by_stem(given.figures)
    return post.Material(
        numbers=numbers.nested(json.loads(Path(given.numbers).read_text(encoding="utf-8"))),
        paper=config["paper"],
        figures=figures,
        alternatives={
            name: Path(path).read_text(encoding="utf-8").strip() for name, path in _by_stem(given.alternatives).items()
        },
        entries=bibliography.read(given.bibliography),
        origin=_origin(given, config, makers, root),
    )


def _origin(given, config, makers, root):
    """The provenance of tables, figures, models and data by the names that the post gives them."""
    files = {}
    for kind in ("tables", "figures", "data"):
        files |= {f"{kind}/{Path(path).name}": path for path in getattr(given, kind)}
    files |= {f"models/{_model(path)}": path for path in given.models}
    files["config.yaml"] = given.numbers  # read as it is
    return provenance.Origin(
        study=config["study"],
        configuration=provenance.fingerprint(config),
        commit=provenance.commit(root),
        makers={name: tuple(makers[path]) for name, path in files.items()},
        times={name: provenance.made(path) for name, path in files.items()},
        hashes={name: sha256(path) for name, path in files.items() if name.startswith(("tables/", "figures/"))},
    )


def _by_stem(paths):
    return {Path(path).stem: path for path in paths}


def _model(path):
    """The model's name in …/models/{model}/seed_{seed}."""
    return Path(path).parent.name


def _trained(name):
    model, seed = name.split("/seed_")
    return model, int(seed)


def _write(text, path):
    with atomic(path) as file:
        file.write(text.encode())
