"""Files in, files out: what each rule of the paper reads and writes."""

import json
import shutil
from pathlib import Path

from ..common.files import atomic, write_table
from ..common.intervals import Interval
from ..figures.inputs import read_input
from ..figures.read import read_table
from . import bibliography, claims, explorer, lab, numbers, page, post, provenance, report


def claims_file(inputs, output, *, config):
    """Evaluate the claims on this run and on the reference runs; stop where one fails that the article makes."""
    stated = claims.read(inputs.claims)
    table = claims.evaluate(stated, _runs(inputs, config), inputs.claims)
    claims.require(stated, table, inputs.claims)
    write_table(table, output)


def explorer_file(inputs, output, *, models, steps, max_facts):
    """Choose what the explorer shows; `models` has each model's family, `inputs.traces` are folders of splits."""
    made = explorer.build(
        models,
        {fact["id"]: fact["name"] for fact in _lines(inputs.facts)},
        {Path(path).parent.name: _lines(path) for path in inputs.completions},
        read_input("traces", inputs.traces),
        steps=steps,
        max_facts=max_facts,
    )
    _write(explorer.embed(made), output)


def post_files(inputs, output, *, config, makers, root):
    """The Markdown of the post with its images, the tables that it links to, and its bibliography."""
    material = collect_material(inputs, config, makers, root)
    document = post.write(post.AlFolio(material.paper["slug"]), material)
    if inputs.sources:
        post.require_complete(document, material)
    for kind, files, folder in (("figures", inputs.figures, output.images), ("tables", inputs.tables, output.tables)):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            if f"{kind}/{Path(file).name}" in document.files:
                shutil.copyfile(file, Path(folder) / Path(file).name)
    shutil.copyfile(inputs.bibliography, output.bibliography)
    _write(post.al_folio(document, material.paper), output.post)


def lab_file(inputs, output, *, models, sampling, steps):
    """Pack the networks of the lab and choose what can be asked; `models` has each model's family.

    `inputs.models` are folders …/{model}/seed_{seed}, `sampling` has the settings of the first diffusion model.
    """
    folders = {Path(folder).parent.name: folder for folder in inputs.models}
    made = lab.build(
        {name: folders[name] for name in lab.choose_models(models).values()},
        models,
        read_input("facts", inputs.facts),
        read_input("splits", inputs.splits),
        read_input("completions", inputs.completions),
        sampling=sampling,
        steps=steps,
    )
    _write(json.dumps(made, ensure_ascii=False), output)


def page_file(inputs, output, *, config, makers, root):
    """The page that stands alone, with the lab, or where the study has none, with the explorer."""
    material = collect_material(inputs, config, makers, root)
    packed = _read_json(inputs.lab) if inputs.lab else {}
    obstacle = packed.get("obstacle")
    if packed and not obstacle:
        weights = {f"lab-weights-{name}": text for name, text in packed.pop("weights").items()}
        made = _compose_page(inputs, material, "lab", {"lab-data": explorer.embed(packed), **weights})
        if len(made.encode()) <= page.MOST_BYTES:
            return _write(made, output)
        obstacle = f"the page would take more than {page.MOST_BYTES // 10**6} MB"
    note = f"<p>This page has no lab: {post.text(obstacle)}.</p>\n" if obstacle else ""
    data = _read_json(inputs.explorer) if inputs.explorer else {"cases": []}
    return _write(_compose_page(inputs, material, "explorer", {"explorer-data": explorer.embed(data)}, note), output)


def _compose_page(inputs, material, tool, data, note=""):
    """The page with a `tool`, "lab" or "explorer"; its script is made of those of all tools and its own."""
    texts = {Path(path).name: Path(path).read_text(encoding="utf-8") for path in [*inputs.scripts, *inputs.tools]}
    own = ("lab_worker.js", "lab.js") if tool == "lab" else ("explorer.js",)
    return page.page(
        inputs.page,
        post.write(post.Page(note + texts[f"{tool}.html"]), material),
        material,
        data=data,
        style=Path(inputs.style).read_text(encoding="utf-8"),
        script="\n".join(texts[name] for name in ("page.js", "drawing.js", *own)),
    )


def sortable_files(inputs, output):
    """A page for each table of Snakemake's report."""
    for table, made in zip(inputs.tables, output, strict=True):
        _write(page.sortable(inputs.template, table), made)


def collect_material(inputs, config, makers, root):
    """What the article or, where `inputs.sources` names none, the report is made from."""
    figures = {Path(path).stem: path for path in inputs.figures}
    tables = {Path(path).stem: path for path in inputs.tables}
    stated = claims.read(inputs.claims)
    rows = read_table(inputs.verdicts).itertuples()
    verdicts = {(row.claim, row.run): (Interval(row.estimate, row.low, row.high), row.verdict) for row in rows}
    if inputs.sources:
        sources = [post.read_source(path) for path in inputs.sources]
    else:
        shown = {name: post.find_figure(name) for name in figures}
        sources = report.compose(config, shown, [name for name in tables if name != "claims"], bool(inputs.explorer))
        stated = [claim for claim in stated if verdicts[claim.id, "this"][1] != claims.NOT_MEASURED]
    runs, quantities = _runs(inputs, config), numbers.read_numbers(inputs.numbers) if inputs.sources else {}
    alternatives = {Path(path).stem: Path(path).read_text(encoding="utf-8").strip() for path in inputs.alternatives}
    return post.Material(
        sources=sources,
        paper=config["paper"] | {key: sources[0].front[key] for key in ("title", "subtitle")},
        runs=runs,
        numbers=numbers.measure_all(quantities, runs, inputs.numbers),
        claims=stated,
        verdicts=verdicts,
        figures={
            name: post.Figure(file, post.find_figure(name).caption, alternatives[name])
            for name, file in figures.items()
        },
        entries=bibliography.read(inputs.bibliography) if inputs.sources else {},
        origin=_provenance(inputs, config, makers, root),
        settings={key: value for key, value in config.items() if key != "paper"},
    )


def _runs(inputs, config):
    """This run and the reference runs: {name: Run}."""
    models = {}
    for name, family in (("mdm", "diffusion"), ("ar", "autoregressive")):
        own = [model for model, settings in config["models"].items() if settings["family"] == family]
        if own and name not in own:
            models[name] = own[0]
    here = {Path(path).stem: path for path in inputs.tables}
    tables = [path for path in inputs.reference if path.endswith(".csv")]
    return {"this": numbers.Run(here, models), **numbers.group_runs(tables)}


def _provenance(inputs, config, makers, root):
    files = {f"{kind}/{Path(path).name}": path for kind in ("tables", "figures") for path in getattr(inputs, kind)}
    return provenance.Provenance(
        study=config["study"],
        configuration=provenance.fingerprint(config),
        commit=provenance.commit(root),
        makers={name: tuple(makers[path]) for name, path in files.items()},
        times={name: provenance.made(path) for name, path in files.items()},
        runs={Path(path).parent.name: _read_json(path) for path in inputs.reference if path.endswith(".json")},
    )


def _read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def _lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _write(content, path):
    with atomic(path) as file:
        file.write(content.encode())
