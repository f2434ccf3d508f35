"""The figures of the post, each drawn from tables, rows and arrays already on disk; pictures.smk lists them."""

for figure, drawn in (FIGURES | ASIDE).items():

    rule:
        name:
            f"figure_{figure}"
        input:
            **drawn.sources,
            words=shipped("paper/alt.yaml"),
            code=library("figure", f"figures/{drawn.drawn_by}.py"),
        output:
            svg=report(
                f"<results>/figures/{figure}.svg",
                category=f"{SECTIONS.index(drawn.category) + 1:02} {drawn.category}",  # the menu is in alphabetical order
                caption=f"../../paper/report/{drawn.like or figure}.rst",
                labels={"figure": drawn.title},
            ),
            png=f"<results>/figures/{figure}.png",
            alt=f"<results>/figures/{figure}.txt",
        log:
            f"<results>/logs/figures/{figure}.log",
        benchmark:
            f"<results>/benchmarks/figures/{figure}.tsv"
        localrule: True
        conda:
            "../../envs/reversal.yaml"
        params:
            **drawn.params,
            figure=drawn.like or figure,
            module=drawn.drawn_by,
        script:
            "../scripts/figure.py"
