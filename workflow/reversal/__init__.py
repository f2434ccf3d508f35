"""How masked diffusion and autoregressive language models recall facts: the library behind the workflow."""
