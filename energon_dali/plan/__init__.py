"""The order of all samples, computed on integers: plans, and what they are made of.

Nothing here reads a file. Every function gives the same values on every machine and with every numpy version, so that
an order is a function of (seed, source, stream, epoch, position), and a saved position is enough to continue it.
"""

from __future__ import annotations

from energon_dali.plan.epoch import EpochOrder
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import Cursor
from energon_dali.plan.mixtures import BlendPlan, ConcatPlan, EpochizedBlendPlan, weighted_draws
from energon_dali.plan.plan import Plan, Rows
from energon_dali.plan.repeated import RepeatedPlan
from energon_dali.plan.rng import (
    mix,
    mix_arrays,
    permutation,
    raw_words,
    sample_seed,
    sample_seeds,
    source_seed,
    uniform,
)
from energon_dali.plan.slices import Slices, cut_slices
from energon_dali.plan.source import SourcePlan
from energon_dali.plan.window import WindowShuffle

__all__ = [
    "BlendPlan",
    "ConcatPlan",
    "Cursor",
    "EpochOrder",
    "EpochizedBlendPlan",
    "GlobalBatchPlan",
    "Plan",
    "RepeatedPlan",
    "Rows",
    "Slices",
    "SourcePlan",
    "WindowShuffle",
    "cut_slices",
    "mix",
    "mix_arrays",
    "permutation",
    "raw_words",
    "sample_seed",
    "sample_seeds",
    "source_seed",
    "uniform",
    "weighted_draws",
]
