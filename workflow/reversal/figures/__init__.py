"""Figures, drawn from tables and arrays already on disk; nothing here loads a network."""

from .ablation import ablations
from .curse import reversal_curse
from .data import dataset
from .denoising import canvas, denoising_step, timeline
from .editing import edits
from .recall import probe, step_scaling, training_curves
from .style import Drawing, write
from .symmetry import symmetry_layers, symmetry_pca, symmetry_retrieval, symmetry_spectra
from .tracing import trace_average, trace_facts, trace_steps

__all__ = [
    "Drawing",
    "ablations",
    "canvas",
    "dataset",
    "denoising_step",
    "edits",
    "probe",
    "reversal_curse",
    "step_scaling",
    "symmetry_layers",
    "symmetry_pca",
    "symmetry_retrieval",
    "symmetry_spectra",
    "timeline",
    "trace_average",
    "trace_facts",
    "trace_steps",
    "training_curves",
    "write",
]
