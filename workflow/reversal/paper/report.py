"""The report of a study of one's own: its claims, figures and tables with their captions, and no narrative.

The article is about the people and models of its reference runs. A study of other people or models gets this instead,
written in the language of the article, so that the same code renders both.
"""

from ..figures.registry import SECTIONS, TABLES
from ..models.vocabulary import FAMILIES
from .markdown import text
from .post import Source

ROWS = 12  # of a table that are shown


def describe_data(data):
    """What the people and sentences of a study are, from its `data` in the configuration."""
    source = data["source"]
    settings = data[source]
    if source == "generated":
        people = 3 * settings["people_per_group"] + 2 * settings["control_people"]
        return f"{people} people generated from the words in {settings['words']}"
    if source == "rows":
        return f"the rows in {settings['train']} and {settings['tests']}"
    if source == "pairs":
        return f"pairs of children and parents in {settings['file'] or 'the set of Berglund et al.'}"
    return "the people of Berglund et al."


def compose(config, figures, tables, explorer):
    """The Markdown of the report and of its appendices: [Source].

    `figures` is {name: registry.Figure} and `tables` are the names of the study's tables; `explorer` tells whether
    there is one.
    """
    data = describe_data(config["data"])
    models = ", ".join(f"{name} ({FAMILIES[model['family']].name})" for name, model in config["models"].items())
    seeds = f"{len(config['seeds'])} seed{'s' if len(config['seeds']) > 1 else ''}"
    front = {
        "title": f"Report of the study {config['study']}",
        "subtitle": f"{models}; {data}; {seeds}",
        "tldr": [],
    }
    parts = [
        f"Claims of the article that this study can test, its figures, and its tables. Models: {text(models)}. Data: "
        f"{text(data)}. {seeds[0].upper() + seeds[1:]}.",
    ]
    for section in ("Claims", *SECTIONS[:-1]):
        shown = [f'{{{{ figure("{name}") }}}}' for name, figure in figures.items() if figure.section == section]
        parts += [f"## {section}", *shown] if shown else []
        parts += ["{{ claims() }}"] if section == "Claims" else []
    parts += ["## Explore", "{{ explorer() }}"] if explorer else []
    appendices = ["## Appendix: configuration", "{{ settings() }}"]
    for name in tables:
        title, caption = TABLES[name].title, TABLES[name].caption
        appendices += [f"## Appendix: table {title}", f'{{{{ table("{name}", "{caption}", rows={ROWS}) }}}}']
    return [Source("the report", front, "\n\n".join(parts)), Source("its appendices", {}, "\n\n".join(appendices))]
