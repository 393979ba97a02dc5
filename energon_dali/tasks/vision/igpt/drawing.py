"""Draws images: pixel by pixel, each from the distribution that the model gives for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from energon_dali.errors import ConfigError


def draw_pixels(
    backbone: torch.nn.Module, known: torch.Tensor, length: int, *, seed: int, temperature: float = 1.0
) -> torch.Tensor:
    """Returns sequences int64[length, B] that begin with the known pixels, on their device.

    The same seed gives the same images. The model is in evaluation mode meanwhile and back in its mode afterwards,
    and no global random state is used. With a model that has `start` and `extend`, as GPT2 has, a pixel costs one
    position; else the whole sequence so far.

    Args:
        backbone: Gives logits float[T, B, colours] of tokens int64[T, B], each from those before it.
        known: int64[n, B], 0 <= n <= length; n = 0 draws whole images.
        length: Pixels of an image.
        seed: Of the draws.
        temperature: Below 1 likelier colours, above 1 unlikelier ones.

    Raises:
        ConfigError: temperature is not above 0, or more pixels are known than there are.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature}: it divides and must be above 0. 1.0 draws as the model says.")
    if len(known) > length:
        raise ConfigError(
            f"{len(known)} pixels are known, of images with {length}. Sequences come first: known is int64[n, B]."
        )
    generator = torch.Generator().manual_seed(seed)
    count = known.shape[1]
    draws = torch.rand(count, length, generator=generator).to(known.device).t()
    tokens = torch.cat([known, known.new_zeros(length - len(known), count)])
    mode = backbone.training
    backbone.eval()
    try:
        with torch.inference_mode(), _one_thread(known.device):
            _fill(backbone, tokens, len(known), draws, temperature)
    finally:
        backbone.train(mode)
    return tokens


def _fill(backbone: Any, tokens: torch.Tensor, first: int, draws: torch.Tensor, temperature: float) -> None:
    has_cache = hasattr(backbone, "start") and hasattr(backbone, "extend")
    cache = backbone.start(tokens.shape[1]) if has_cache else None
    for position in range(len(tokens)):
        if cache is not None:
            logits = backbone.extend(tokens[position - 1] if position else None, cache)
        elif position >= first:
            logits = backbone(tokens[: position + 1])[position]
        if position >= first:
            tokens[position] = _choose(logits / temperature, draws[position])


def _choose(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Returns int64[B]: the first number at which the summed probabilities reach beyond the draw."""
    sums = logits.float().softmax(dim=-1).cumsum(dim=-1)
    return (sums <= draws[:, None]).sum(dim=-1).clamp_(max=logits.shape[-1] - 1)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU: each step is so small that threads would wait for each other for longer than they work."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
