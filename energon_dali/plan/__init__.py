"""The order of all samples, computed on integers: slices, epochs, shuffles, blends and seeds.

Nothing here reads a file. Every function gives the same values on every machine and with every numpy version, so that
an order is a function of (seed, source, stream, epoch, position), and a saved position is enough to continue it.
"""

from __future__ import annotations

from energon_dali.plan.blend import blend_draws
from energon_dali.plan.epoch import EpochOrder
from energon_dali.plan.interleave import Interleave
from energon_dali.plan.order import OrderSpec, StreamOrder
from energon_dali.plan.repeated import RepeatedOrder
from energon_dali.plan.rng import mix, mix_arrays, permutation, raw_words, sample_seed, sample_seeds, uniform
from energon_dali.plan.slices import Slices, cut_slices
from energon_dali.plan.window import WindowShuffle

__all__ = [
    "EpochOrder",
    "Interleave",
    "OrderSpec",
    "RepeatedOrder",
    "Slices",
    "StreamOrder",
    "WindowShuffle",
    "blend_draws",
    "cut_slices",
    "mix",
    "mix_arrays",
    "permutation",
    "raw_words",
    "sample_seed",
    "sample_seeds",
    "uniform",
]
