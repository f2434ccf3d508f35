"""How masked diffusion and autoregressive language models recall facts: the library behind the workflow.

The public names are in `reversal.models`, `reversal.recall`, `reversal.tracing` and `reversal.figures`; docs/library.md
lists them and examples/tour.ipynb shows them.
"""
