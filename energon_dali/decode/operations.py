"""Image operations to declare on a decoder: frozen values with the same meaning for every backend.

They behave as in torchvision. All geometric operations of a decoder together become one crop of the source,
one resampling and one flip (`geometry.draw_geometry`), whatever their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from energon_dali.calls import check_switches, explain_call
from energon_dali.errors import ConfigError

Interpolation = Literal["bilinear", "bicubic", "nearest"]
INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)
MAX_SIDE_PX = 65_535
"""Largest side of an output image."""


@explain_call
@dataclass(frozen=True, slots=True)
class Resize:
    """Resamples the image to a size.

    Raises:
        ConfigError: The size is not one or two positive whole numbers, or the interpolation is unknown.
    """

    size: int | tuple[int, int]
    """Pixels: (height, width), or one number for the shorter side with the aspect ratio kept (the longer side is
    rounded down, as torchvision does)."""
    interpolation: Interpolation = "bilinear"
    """"bilinear", "bicubic" or "nearest"."""
    antialias: bool = True
    """Widens the filter when the image shrinks, as PIL does. Without it fine detail turns into noise. Cost: up to twice
    the time of resampling."""

    def __post_init__(self) -> None:
        _refuse_two_sides(self, self.size, self.interpolation)
        size = self.size if isinstance(self.size, int) else _pair(self, "size", self.size)
        _check_sides(self, (size, size) if isinstance(size, int) else size)
        object.__setattr__(self, "size", size)
        _check_interpolation(self, self.interpolation)
        check_switches(antialias=self.antialias)


@explain_call
@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """Crops a random box and resamples it to a fixed size.

    Area and aspect ratio are drawn up to ten times until the box fits. If it never does, the result is the largest
    central box with an allowed aspect ratio.

    Raises:
        ConfigError: The size, scale, ratio or interpolation is invalid.
    """

    size: int | tuple[int, int]
    """Pixels of the result: (height, width), or one number for a square. Stored as a pair."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest area of the box, as a fraction of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width / height of the box; its logarithm is drawn uniformly."""
    interpolation: Interpolation = "bilinear"
    """"bilinear", "bicubic" or "nearest"."""
    antialias: bool = True
    """Widens the filter when the image shrinks, as PIL does. Cost: up to twice the time of resampling."""

    def __post_init__(self) -> None:
        _refuse_two_sides(self, self.size, self.scale)
        object.__setattr__(self, "size", _square(self, self.size))
        object.__setattr__(self, "scale", _range(self, "scale", self.scale))
        object.__setattr__(self, "ratio", _range(self, "ratio", self.ratio))
        _check_interpolation(self, self.interpolation)
        check_switches(antialias=self.antialias)


@explain_call
@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Crops the centre of the image. An image smaller than the crop is a DecodeError of its sample.

    Raises:
        ConfigError: The size is not one or two positive whole numbers.
    """

    size: int | tuple[int, int]
    """Pixels: (height, width), or one number for a square. Stored as a pair."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _square(self, self.size))


@explain_call
@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Crops a fixed-size box at a random position. An image smaller than the crop is a DecodeError of its sample.

    Raises:
        ConfigError: The size is not one or two positive whole numbers.
    """

    size: int | tuple[int, int]
    """Pixels: (height, width), or one number for a square. Stored as a pair."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _square(self, self.size))


@explain_call
@dataclass(frozen=True, slots=True)
class HorizontalFlip:
    """Mirrors left and right with a probability.

    Raises:
        ConfigError: The probability is not in [0, 1].
    """

    p: float = 0.5
    """Probability of the flip, 0 to 1; 1 flips always."""

    def __post_init__(self) -> None:
        p: object = self.p
        if not isinstance(p, Real) or not 0.0 <= float(p) <= 1.0:
            raise ConfigError(
                f"HorizontalFlip(p={self.p!r}) is not a probability. Give p between 0 and 1, such as the default 0.5."
            )


@explain_call
@dataclass(frozen=True, slots=True)
class Normalize:
    """Shifts and scales each channel: (pixel / 255 - mean) / std, in float32.

    It is applied last, wherever it is in the sequence of operations.

    Raises:
        ConfigError: Different numbers of means and deviations, a deviation that is not positive, or values of 0 to 255.
    """

    mean: tuple[float, ...]
    """One mean per channel, or one for all, in units of [0, 1]."""
    std: tuple[float, ...]
    """One standard deviation per channel, or one for all, in units of [0, 1]."""

    def __post_init__(self) -> None:
        try:
            mean, std = _floats(self.mean), _floats(self.std)
        except (TypeError, ValueError):
            raise ConfigError(
                f"Normalize(mean={self.mean!r}, std={self.std!r}) is not made of numbers. Give both in units of "
                "[0, 1], such as mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)."
            ) from None
        if len(mean) != len(std) or not mean:
            raise ConfigError(
                f"Normalize was given {len(mean)} means and {len(std)} standard deviations. Each channel needs one of "
                "both. Give as many of one as of the other: one, or one per channel."
            )
        # `not x > 0` also catches NaN.
        if any(not 0.0 < value < float("inf") for value in std) or any(value != value for value in mean):
            raise ConfigError(
                f"Normalize(mean={mean}, std={std}) cannot be computed. A standard deviation divides the pixels and "
                "must be positive and finite. Give both in units of [0, 1], such as mean=(0.5,), std=(0.5,)."
            )
        if max(mean) > 1.0 and min(std) > 1.0:
            raise ConfigError(
                f"Normalize(mean={mean}, std={std}) is in units of 0 to 255. Here pixels are in units of [0, 1]: "
                "divide both by 255."
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)


GeometricOperation = Resize | RandomResizedCrop | CenterCrop | RandomCrop | HorizontalFlip
Operation = Resize | RandomResizedCrop | CenterCrop | RandomCrop | HorizontalFlip | Normalize
GEOMETRIC_OPERATIONS: tuple[type, ...] = get_args(GeometricOperation)
OPERATIONS: tuple[type, ...] = get_args(Operation)


def _floats(values: float | Sequence[float]) -> tuple[float, ...]:
    return (float(values),) if isinstance(values, (int, float)) else tuple(float(value) for value in values)


def _square(operation: object, size: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width), checked."""
    pair = (size, size) if isinstance(size, int) else _pair(operation, "size", size)
    _check_sides(operation, pair)
    return pair


def _pair(operation: object, name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ConfigError(
            f"{type(operation).__name__}({name}={value!r}) is not a size. A size is one integer or a pair (height, "
            f"width) of pixels. Give {name}=224 or {name}=(224, 320)."
        )
    return (value[0], value[1])


def _check_sides(operation: object, size: tuple[int, int]) -> None:
    if not all(isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= MAX_SIDE_PX for side in size):
        raise ConfigError(
            f"{type(operation).__name__}(size={size!r}) is not an image size. Both sides must be whole numbers of "
            f"pixels from 1 to {MAX_SIDE_PX}. Give size=224 or size=(224, 320) as (height, width)."
        )


def _range(operation: object, name: str, value: Sequence[float]) -> tuple[float, float]:
    low_high = _floats(value)
    if len(low_high) != 2 or not 0.0 < low_high[0] <= low_high[1] < float("inf"):
        raise ConfigError(
            f"{type(operation).__name__}({name}={value!r}) is not a range to draw from. It takes a pair (smallest, "
            f"largest) with 0 < smallest <= largest. Give for example {name}="
            f"{(0.08, 1.0) if name == 'scale' else (0.75, 1.33)}."
        )
    return (low_high[0], low_high[1])


def _refuse_two_sides(operation: object, size: object, second: object) -> None:
    """Raises an error if height and width were given as two arguments."""
    if isinstance(second, int):
        name = type(operation).__name__
        raise ConfigError(
            f"{name}({size!r}, {second!r}) has height and width as two arguments, and takes a pair. Did you mean "
            f"{name}(({size!r}, {second!r}))?"
        )


def _check_interpolation(operation: object, interpolation: str) -> None:
    if interpolation not in INTERPOLATIONS:
        raise ConfigError(
            f"{type(operation).__name__}(interpolation={interpolation!r}) is unknown. Every backend must resample the "
            f"same way, so only {', '.join(INTERPOLATIONS)} are offered. Choose one of them."
        )


def crops_resized(operations: tuple[GeometricOperation, ...]) -> bool:
    """Returns whether a crop follows a resize, so that the box is in fractions of source pixels."""
    resized = False
    for operation in operations:
        if resized and isinstance(operation, (CenterCrop, RandomCrop, RandomResizedCrop)):
            return True
        resized = resized or isinstance(operation, (Resize, RandomResizedCrop))
    return False
