"""Every figure and table of the study in one place: what it is called, what draws it, from what, and what it shows.

The rules, Snakemake's report, the article and the tests read this. To add a figure, write its function and its entry
here. A report shows every figure that its study can draw; the article shows those that paper/article.md and
paper/appendices.md name. Every job reads the rules, and with them this module: it imports nothing slow.
"""

from dataclasses import dataclass, replace

# Headings of the report, in its order.
SECTIONS = (
    *("The finding", "The reversal curse", "Dataset", "Denoising", "Fine-tuning", "Step scaling"),
    *("What lifts the curse", "Causal tracing", "Symmetry of keys and values", "Rank-one edits", "Fine-tuned edits"),
    *("Shared or separate storage", "Reference runs", "Claims"),
)
NEEDS = ("diffusion", "trained", "untrained")


@dataclass(frozen=True)
class Figure:
    """One figure.

    `function` is "module.function" of this package: it takes `inputs` by position and `options` by keyword. An input is
    a kind that `inputs.READERS` knows, or else the name of a table. `needs` says which studies have the figure:
    those with a "diffusion" model, those that train facts ("trained") or test bases ("untrained").
    A `caption` stands alone; {…} in `alt`, its text for readers who do not see it, is filled with values of the data.
    """

    function: str
    inputs: tuple[str, ...]
    title: str
    section: str
    caption: str
    alt: str
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ("models",)
    is_default: bool = True  # shown in every report; others are targets of their own

    def __post_init__(self):
        if self.section not in SECTIONS:
            raise ValueError(f"{self.function}: section is {self.section!r}; allowed: {', '.join(SECTIONS)}")
        for name in ("inputs", "needs", "options"):
            if not isinstance(getattr(self, name), tuple):
                raise TypeError(f"{self.function}: {name} is {getattr(self, name)!r}; write a tuple, with a comma")
        if unknown := {*self.needs} - {*NEEDS}:
            raise ValueError(f"{self.function}: needs has {', '.join(unknown)}; allowed: {', '.join(NEEDS)}")
        for name in ("caption", "alt"):
            object.__setattr__(self, name, " ".join(getattr(self, name).split()))


@dataclass(frozen=True)
class Table:
    """One table of the results, tables/{name}.csv."""

    title: str
    caption: str


FIGURES = {
    "base_knowledge": Figure(
        function="recall.base_knowledge",
        inputs=("step_scaling", "likelihood"),
        title="What the bases know",
        section="The finding",
        caption="""Recall of facts that no model was trained on here: children and parents, the same people in both
        directions. Left, the share of correct answers, with the most denoising steps where a model takes any; right,
        how much more likely the correct name is than a wrong one. Bars are 95% intervals.""",
        alt="""Two dot plots with intervals. Share of correct answers, from child to parent and from parent to child:
        {recalled}.""",
        needs=("untrained",),
    ),
    "first_screen": Figure(
        function="article.first_screen",
        inputs=("completions",),
        title="One person asked both ways",
        section="The finding",
        caption="""One person, taught name first and asked forward and in reverse, with the answers of both models in
        this run: ✓ correct, ✗ wrong. The person is chosen to show the difference. Below, the share of all questions in
        the reverse direction that each model answers correctly in this run.""",
        alt="""Questions about {name}, who was taught name first, asked forward and in reverse, with the answers of the
        models marked as correct or wrong. Correct of all questions in the reverse direction: {recalled}.""",
        needs=("trained",),
    ),
    "reversal_curse": Figure(
        function="curse.reversal_curse",
        inputs=("completions", "likelihood"),
        title="The reversal curse",
        section="The reversal curse",
        caption="""Top: one person trained from name to description, asked in the same and in the reverse direction,
        with the answers of one model of each family; the person is chosen to show the curse where there is one, and the
        percentages are over all such questions. Bottom: how much more likely each model finds the correct answer than a
        wrong one, in nats, with 95% intervals; at 0 it cannot tell them apart.""",
        alt="""Text panels with questions about {name}, and a dot plot with intervals. Share of correct answers to all
        such questions, in the same and in the reverse direction: {recalled}.""",
        needs=("trained",),
    ),
    "dataset": Figure(
        function="data.dataset",
        inputs=("facts", "training_rows", "splits"),
        title="The dataset",
        section="Dataset",
        caption="""The first person of each group: the sentences that are trained and the questions that test them. The
        subject is what a question names, the object what it asks for; in the reverse direction they change places.""",
        alt="""Example sentences with subject, relation and object marked, of {p2d_people} people trained from person to
        description, {d2p_people} from description to person, {both_people} in both directions{control}; {rows}
        sentences in all.""",
        needs=("trained",),
        options=("protected",),
    ),
    "denoising_step": Figure(
        function="denoising.denoising_step",
        inputs=("example_completions", "questions"),
        title="One denoising step",
        section="Denoising",
        caption="""One step in the middle of a generation. The model predicts all masked tokens at once and keeps some
        of its predictions, by default the most probable; the others are masked again and predicted anew at the next
        step.""",
        alt="""Step {step} of {steps} after the prompt “{prompt}”, in three rows of boxes: {before} tokens were revealed
        before; every masked token is predicted and {which} kept, here {revealed}; the other {remasked} are masked
        again.""",
        needs=("diffusion",),
        options=("order",),
    ),
    "timeline": Figure(
        function="denoising.timeline",
        inputs=("example_completions", "questions"),
        title="A generation step by step",
        section="Denoising",
        caption="""The canvas after each denoising step of one generation: masks turn into tokens. The first token of
        the answer appears at step t1, the last at step t2.""",
        alt="A grid of {steps} denoising steps by the tokens after the prompt “{prompt}”. {answer}",
        needs=("diffusion",),
        options=(),
    ),
    "training_curves": Figure(
        function="recall.training_curves",
        inputs=("histories",),
        title="Training loss",
        section="Fine-tuning",
        caption="""Loss of every batch during fine-tuning (faint) and a running mean. The loss of a diffusion model is a
        bound that counts every token of a padded row, so the losses of the two families cannot be compared.""",
        alt="Line plots of the fine-tuning loss against training steps, in nats per token: {losses}.",
        needs=("trained",),
    ),
    "step_scaling": Figure(
        function="recall.step_scaling",
        inputs=("step_scaling", "published"),
        title="Recall by denoising steps",
        section="Step scaling",
        caption="""Share of correct answers against the number of denoising steps, with 95% intervals over people and
        templates: left the same direction, right the reverse. High on the left and low on the right is the reversal
        curse. An autoregressive model takes no denoising steps and is a level line; hollow markers, where shown, are
        published values.""",
        alt="""Four line plots with intervals. Names in the same direction, descriptions in the reverse, descriptions in
        the same and names in the reverse direction, in this order: {recalled}.""",
        needs=("trained",),
    ),
    "trace_facts": Figure(
        function="tracing.trace_facts",
        inputs=("traces",),
        title="Causal trace of one fact",
        section="Causal tracing",
        caption="""Nats of the answer recovered by restoring the hidden state of one token after one layer, from the
        step that reveals the first answer token (t1), half way, and at the step that reveals the last (t2). In both
        families each answer token is scored given those before it. Each row is a model and a direction, with its own
        colour scale; above each panel is the total effect of corrupting the subject.""",
        alt="""Heat maps of {facts}, tokens by layers, a panel for each denoising step and a row for each of {ways}
        combinations of model and question.""",
    ),
    "trace_average": Figure(
        function="tracing.trace_average",
        inputs=("causal_trace",),
        title="Average causal trace",
        section="Causal tracing",
        caption="""Share of the total effect of corrupting the subject that is recovered at t1, when no answer token is
        visible yet, by restoring a hidden state or the output of an MLP or attention module, by token role and layer;
        dark is sufficient. Rows for all subject tokens and for the answer positions restore all of them together; roles
        of the subject have a star, and grey marks roles that too few facts have. Total effects in nats, above, score
        each answer token given those before it.""",
        alt="""Heat maps by token role and layer, side by side for {columns}. Roles that recover next to nothing:
        {idle}. Largest for hidden states: {state}. For MLPs: {mlp}. For attention: {attn}.""",
    ),
    "trace_necessity": Figure(
        function="tracing.trace_necessity",
        inputs=("causal_trace",),
        title="Sufficient and necessary states",
        section="Causal tracing",
        caption="""Share of the total effect at t1, layer by layer, with 95% intervals over facts: recovered when hidden
        states are restored in the corrupted run (solid: sufficient), lost when they are corrupted in the clean run
        (dotted: necessary). Where the lines of the subject fall and those of the answer positions rise, the answer
        moves from one to the other.""",
        alt="Line plots with intervals. The largest shares recovered: {shares}.",
    ),
    "trace_windows": Figure(
        function="tracing.trace_windows",
        inputs=("causal_trace",),
        title="Windows of layers",
        section="Causal tracing",
        caption="""Share of the total effect at t1 recovered by the outputs of MLPs and of attention at all subject
        tokens, restored in one layer or in a window of layers around it, with 95% intervals over facts. Where one layer
        recovers as much as a window, it does the work alone.""",
        alt="Line plots with intervals. The largest shares recovered: {shares}.",
    ),
    "trace_directions": Figure(
        function="tracing.trace_directions",
        inputs=("causal_trace",),
        title="Traces by the direction of training",
        section="Causal tracing",
        caption="""The same question about people trained in its direction and about people trained in the other. Each
        point is the hidden state of a token role at a layer, its mean indirect effect in the first group against that
        in the second; on the line both are equal.""",
        alt="Scatter plots with the line on which both groups are equal: {questions}.",
        needs=("diffusion", "trained"),
    ),
    "attention_heads": Figure(
        function="lens.attention_heads",
        inputs=("attention_heads",),
        title="Single attention heads",
        section="Causal tracing",
        caption="""Share of the total effect of corrupting the subject that one attention head recovers, restored at the
        answer positions alone, at t1. Shares from 5% on are written in. A dark cell is a head that brings the answer
        there by itself; several pale ones in a layer share the work.""",
        alt="Heat maps of attention heads by layers. The largest shares recovered: {largest}.",
    ),
    "logit_lens": Figure(
        function="lens.logit_lens",
        inputs=("logit_lens",),
        title="The answer read out of every layer and step",
        section="Causal tracing",
        caption="""Logit lens: the probability that each layer, read out as if it were the last, gives to the answer
        tokens that are still masked, at every denoising step; means over facts. Below each map, a row for every token
        of the answer, in the order of writing: when the last layer first gives it half of the probability (hollow), and
        when it is revealed (filled).""",
        alt="Heat maps of layers by denoising steps, each with a strip of dots below: {tests}.",
        needs=("diffusion",),
    ),
    "attribution": Figure(
        function="lens.attribution",
        inputs=("attribution",),
        title="Attribution patching against the exact trace",
        section="Causal tracing",
        caption="""How well attribution patching, which estimates all effects of hidden states from one gradient,
        agrees with the exact trace, at the steps that reveal the first (t1) and the last token of the answer (t2) and
        half way. Left, the rank correlation over all states; right, the share of the ten states with the largest
        effects that are not among the estimate's ten; with 95% intervals over facts.""",
        alt="Two line plots over the steps t1, between and t2, a line for each model and test. {agreement}.",
    ),
    "handover": Figure(
        function="tracing.handover",
        inputs=("time",),
        title="Handover from the subject to the answer",
        section="Causal tracing",
        caption="""Nats that the answer tokens still to come lose, with 95% intervals over facts, when the subject is
        corrupted, when the answer tokens already revealed are replaced or masked, and when both are. Where the lines
        cross, the answer's own tokens take over from the subject. Each token is scored given those before it; a point
        needs at least half of the facts.""",
        alt="Line plots with intervals, against the number of answer tokens revealed: {courses}.",
        needs=("diffusion",),
    ),
    "corrupted_steps": Figure(
        function="tracing.corrupted_steps",
        inputs=("time",),
        title="When the subject is needed",
        section="Causal tracing",
        caption="""Share of answers still correct, with 95% intervals over facts. Top: the subject is corrupted from a
        denoising step on, or up to it; it is needed at the steps where one curve rises and the other falls. Bottom, for
        fewer facts: the output of one MLP or attention module at the subject is corrupted at all steps, layer by
        layer.""",
        alt="Line plots with intervals, one for each test; below, dots by layer: {tests}.",
        needs=("diffusion",),
    ),
    "symmetry": Figure(
        function="symmetry.symmetry",
        inputs=("symmetry",),
        title="Similarity of forward and reverse representations",
        section="Symmetry of keys and values",
        caption="""Each row compares forward with reverse representations of the same facts at the layer where MLPs
        matter most, with 95% intervals over facts: debiased CKA, mean cosine similarity, and the share of facts that a
        linear probe trained in one direction identifies in the other. Pale bars end at the ceiling, the same measure
        between two halves of the templates; black ticks are the minimum detectable effect.""",
        alt="""Dot plots with intervals, a panel for each of three measures and a row for each comparison. Debiased CKA,
        each of its ceiling: {models}.""",
    ),
    "symmetry_layers": Figure(
        function="symmetry.symmetry_layers",
        inputs=("symmetry",),
        title="Similarity by layer",
        section="Symmetry of keys and values",
        caption="""Similarity (debiased CKA) of the hidden states of a concept as the subject of one question and as the
        answer of the other, layer by layer, before and after fine-tuning, with 95% intervals over facts. Thin lines are
        ceilings, from two halves of the templates.""",
        alt="Two line plots with intervals, for names and for descriptions, under their ceilings. {ranges}.",
    ),
    "symmetry_pca": Figure(
        function="symmetry.symmetry_pca",
        inputs=("symmetry_pca", "symmetry"),
        title="A concept as subject and as answer",
        section="Symmetry of keys and values",
        caption="""Each name and each description twice, in the first two principal components of both: filled, what the
        MLP puts out for its key as subject; hollow, its value as answer (where none was found, as before fine-tuning,
        the MLP's output at the answer positions). Lines join the two; in one representation they would be as short as
        in the first row, which shows the filled points from two halves of the templates. Each panel has the debiased
        CKA of its two sets and the ceiling of that, from two halves of the templates.""",
        alt="""Scatter plots of names and of descriptions, first of one output measured twice, then of each model.
        Debiased CKA, each of its ceiling: {similarities}.""",
        needs=("trained",),
    ),
    "symmetry_spectra": Figure(
        function="symmetry.symmetry_spectra",
        inputs=("symmetry_spectra", "symmetry"),
        title="Singular spectra and principal angles",
        section="Symmetry of keys and values",
        caption="""Left: share of the variance between facts in the first principal components, of names and
        descriptions as subject and as answer. Right: overlap of their top subspaces by layer (mean cosine of the
        principal angles, 1 for the same subspace), between the MLP's output at the subject and that at the answer
        (dots) or the value (diamonds), with 95% intervals over facts. Bars are the overlap with facts permuted, crosses
        that with random keys through the same down-projection, dotted lines that of two halves of the templates.""",
        alt="""Line plots, a row for each run. Left, cumulative spectra: {ranks}. Right, overlaps of subspaces by layer
        with their nulls and ceilings: {overlaps}.""",
        needs=("trained",),
    ),
    "rank_one_edits": Figure(
        function="storage.rank_one_edits",
        inputs=("rank_one_edits",),
        title="Rank-one edits (ROME)",
        section="Rank-one edits",
        caption="""ROME's rank-one update of one MLP gives a fact a new object. Bars: how often the wanted answer is
        more probable than its rival after the edit, with 95% intervals over edits; ticks: before it; diamonds: how
        often it is generated. The last two rows ask in the reverse direction for the edited subject, given its new or
        its old object; dots below show how far each edit moves the wanted answer.""",
        alt="""Bar charts with intervals; below, a dot for each edit. Wanted answer more probable than its rival after
        the edit, and generated as the answer: {models}.""",
    ),
    "finetuned_edits": Figure(
        function="storage.finetuned_edits",
        inputs=("finetuned_edits", "gradients"),
        title="Fine-tuned edits",
        section="Fine-tuned edits",
        caption="""Top: facts are fine-tuned to a new answer in one direction; dots show how much of the change
        transfers to paraphrases and to the reverse direction. Bottom: cosine of the gradients of a fact's two
        questions, less that of other facts. Bars are 95% intervals over facts; where paraphrases lie at 0, no transfer
        could have been seen.""",
        alt="Dot plots with intervals, a column for each direction in which facts were edited: {transfer}.",
    ),
    "storage_tests": Figure(
        function="storage.storage_tests",
        inputs=("storage_tests",),
        title="Tests of storage on networks of known storage",
        section="Shared or separate storage",
        caption="""What each test shows: black and white, on networks that compute the same function and store each fact
        once (black), twice (white), or half of them once (pale); in colour, on the models, with 95% intervals over
        facts and seeds. A test is worth something where black and white lie apart. Power: how often a network with 30
        facts in shared storage is told from one with separate storage; tests are sorted by it, those below the dashed
        line reach less than 80%. Arrows point beyond the scale.""",
        alt="Two dot plots, one for each direction that is edited, a row for each test. {transfer}.",
        is_default=False,
    ),
    "objectives": Figure(
        function="objectives.objectives",
        inputs=("objectives",),
        title="Training objectives and recall",
        section="What lifts the curse",
        caption="""Recall by training objective, with 95% intervals over people and templates. Marks are filled where
        training predicts the subject with the object visible, half-filled where it does so in some presentations only,
        and hollow where it never does. An objective whose marks are far right in both panels has no reversal curse.""",
        alt="""Dots with intervals in two panels, same and reverse direction, a row for each training objective. Reverse
        direction: {recalled}.""",
        needs=("trained",),
        is_default=False,
    ),
    "epochs": Figure(
        function="objectives.epochs",
        inputs=("objectives",),
        title="Recall by epochs",
        section="What lifts the curse",
        caption="""Recall against epochs of training and against the operations they take, the loss on new templates,
        several network shapes, and a diffusion model with and without time conditioning. If the curse were a matter of
        longer training, the autoregressive lines in the reverse direction would rise.""",
        alt="Line plots with intervals. {recalled}.",
        needs=("trained",),
        is_default=False,
    ),
    "four_masks": Figure(
        function="article.four_masks",
        inputs=("facts", "training_rows"),
        title="One sentence under four masks",
        section="Denoising",
        caption="""One training sentence under four masks. Where the masks fall decides which direction of the fact it
        teaches. A model that reads from left to right only ever gets the first kind.""",
        alt="""The sentence "{sentence}" as boxes, four times: with its object masked, an example of A to B; with its
        subject masked, an example of B to A; with words of both masked, a little of both; with both masked, neither.
        Below, the sentence without masks, read from left to right: A to B only.""",
        needs=("diffusion", "trained"),
        options=(),
    ),
    "exposure": Figure(
        function="article.exposure",
        inputs=("objectives",),
        title="Recall by exposure",
        section="What lifts the curse",
        caption="""Share of names and descriptions recalled in the reverse direction, against how often training may
        mask the subject: in none to all of the presentations of a sentence. Bars are 95% intervals over people and
        templates.""",
        alt="Two lines with intervals. Recalled in the reverse direction: {recalled}.",
        needs=("trained",),
        is_default=False,
    ),
    "blocks": Figure(
        function="article.blocks",
        inputs=("objectives", "block_spans"),
        title="Recall by block size",
        section="What lifts the curse",
        caption="""Block diffusion: recall against the block size, in tokens. Above, the share of training sentences
        whose subject and object lie in one block. Below, names and descriptions recalled in the reverse direction, with
        95% intervals over people and templates; dotted, recall in the direction of training.""",
        alt="""Above, bars of the sentences with subject and object in one block: {spans}. Below, lines of recall:
        {recalled}.""",
        needs=("trained", "diffusion"),
        is_default=False,
    ),
    "main_objectives": Figure(
        function="article.main_objectives",
        inputs=("objectives",),
        title="What training must contain",
        section="What lifts the curse",
        caption="""Recall in the reverse direction by training objective, with 95% intervals over people and templates:
        blue diffusion, orange autoregressive. Above, training predicts the subject from the object; below, it never
        does. The control people are those whose subject the first network never masks.""",
        alt="Bars with intervals, a row for each training objective. Recalled in the reverse direction: {recalled}.",
        needs=("trained",),
        is_default=False,
    ),
    "crossover": Figure(
        function="article.crossover",
        inputs=("causal_trace",),
        title="Where a name and a description are",
        section="Causal tracing",
        caption="""Share of the total effect recovered by restoring the states after one layer, of all subject tokens or
        of all answer positions, before any of the answer is written; diffusion model, reverse direction. Where one line
        falls and the other rises, the answer moves from the subject to the masks. Bands are 95% intervals.""",
        alt="Two line plots with bands. From the first layer to the last: {shares}.",
        needs=("diffusion", "trained"),
    ),
    "claims": Figure(
        function="claims.claims",
        inputs=("claims", "claim_list"),
        title="Claims and runs",
        section="Claims",
        caption="""The claims of the article, with a box for this run and each reference run that measures them. A claim
        holds where the whole 95% interval lies within its bounds, fails where the whole interval lies outside, and is
        inconclusive otherwise.""",
        alt="""A table of {claims} and the runs that test them. {verdicts}.""",
        options=(),
    ),
}

TABLES = {
    "step_scaling": Table("Recall", "Share of correct answers by model, seed, test and number of denoising steps."),
    "recall_differences": Table(
        "Differences of recall", "Paired differences of recall between models, tests or steps."
    ),
    "likelihood": Table("Likelihood test", "How much more likely the correct answer is than a wrong one, by test."),
    "objectives": Table("Objectives", "Recall and likelihood beside the training objective of each model."),
    "causal_trace": Table("Causal traces", "Effects of restoring one site, by token role, layer and denoising stage."),
    "traced_facts": Table("Traced facts", "How many facts were traced in each test, and why others were not."),
    "trace_maps": Table("Maps of traces", "Correlations between maps of effects: corruptions, halves and directions."),
    "time": Table("Effects over steps", "What answer tokens depend on at each denoising step."),
    "logit_lens": Table("Logit lens", "Probability of answer tokens by layer and step; when they can be read."),
    "attention_heads": Table("Attention heads", "Effects of restoring single heads at the answer positions."),
    "attribution": Table("Attribution patching", "Agreement of gradients with exact traces, by denoising stage."),
    "keyvalue": Table("Values", "Outcome of the optimisation of each value v*."),
    "symmetry": Table("Similarity", "Similarity of forward and reverse representations, with ceilings."),
    "symmetry_pca": Table("Principal components", "Concepts as subject and as answer in their first two components."),
    "symmetry_spectra": Table("Singular spectra", "Singular values and effective ranks of outputs and values."),
    "rank_one_edits": Table("Rank-one edits", "Success of ROME's edits, by site and measure, before and after."),
    "finetuned_edits": Table(
        "Fine-tuned edits", "What fine-tuning one direction changes, and its transfer to the other."
    ),
    "gradients": Table("Gradients", "Cosine similarity of the gradients of a fact's questions."),
    "claims": Table("Claims", "The article's claims in this run and the reference runs, and whether each holds."),
    "costs": Table("Costs", "Time, memory and an estimate of the energy of every job."),
}


def select_figures(properties) -> dict[str, Figure]:
    """The figures of a study with these `properties` ("diffusion", "trained", "untrained")."""
    return {name: figure for name, figure in FIGURES.items() if set(figure.needs) <= set(properties)}


def label_reference(name: str, run: str) -> Figure:
    """A figure as drawn of a reference run, whose name leads its title and its caption."""
    figure, caption = FIGURES[name], f"Reference run {run}. {FIGURES[name].caption}"
    return replace(figure, title=f"{run}: {figure.title}", caption=caption, section="Reference runs", is_default=True)
