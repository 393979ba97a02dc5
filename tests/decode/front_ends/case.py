"""What `cases` says about a kind of processor."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.decode.front_ends.comparison import Texts, Tokens


@dataclass(frozen=True)
class Case:
    """A kind of processor."""

    name: str
    """Family and model."""
    make: Callable[[random.Random], Any]
    """Returns a processor of the PIL backend with a drawn configuration."""
    published: Callable[[], Any]
    """Returns one with the values of the published model, or the class's defaults."""
    tokens: Tokens | None = None
    """Counts the tokens of images, where the processor does."""
    call: Callable[[Any, list[Any]], dict[str, Any]] | None = None
    """Runs the processor on images, where that needs more than the images."""
    fields: Callable[[Any], dict[str, Any]] = lambda processor: {}
    """Further fields of `FrontEnd.from_processor`."""
    texts: Texts | None = None
    """Writes the texts of images, where the processor does."""
    largest: int = 900
    """Longest side of most images, in pixels."""
    largest_ratio: float = 8000
    """Largest aspect ratio of the extreme sizes; less where the processor's memory grows with it."""
    slow: bool = False
    """Whether the published configuration is left to the sweep, for its large images or its many likes."""
    torchvision: bool = False
    """Whether the processor has the torchvision backend alone, with which it is then compared."""
    most_in_a_batch: int = 4
    """Images that are compared as one batch at most: 1 where the processor makes no batch of different images."""
