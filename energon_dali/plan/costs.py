"""What a sample costs to compute, from its measures: for the vision encoder, and for the language model.

Costs are integers, as ranks on different machines must deal alike. Documents of a pack attend only to themselves, so
the cost of a pack is the sum of those of its samples. Both costs have one unit, or the sum of two barriers would mean
nothing; which unit it is does not matter.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array

Float64Array = npt.NDArray[np.float64]

MEASURES = {
    "tokens": "text and vision tokens: the length in the language model",
    "text_tokens": "tokens of text",
    "vision_tokens": "tokens that the vision and audio encoders hand to the language model",
    "vision_patches": "patches that the vision encoder computes, and positions of the audio encoder",
    "vision_squares": "sum over images, or frames of videos, of the square of their patches",
}
"""The columns that every measured dataset has. Hooks add more."""

_WEIGHT_BITS = 16
"""Precision of the weight of the smaller of two networks."""
_MOST_PARAMETER = 1 << 24
_LENGTH_BITS = 20
"""Length that coefficients are chosen for: 2 ** 20 tokens or patches."""
_COST_BITS = 50
"""Cost of a sample of that length, at most."""
_LITTLE_EXPLAINED = 0.5


@runtime_checkable
class Cost(Protocol):
    """What a sample costs. Any object with these two can be one; equal ones must be `==`, and have a `repr`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the measures that it needs: of `MEASURES`, or numbers that a hook `measure_sample` returns."""

    def of(self, values: Mapping[str, Int64Array]) -> Int64Array:
        """Returns what each sample costs.

        Args:
            values: int64[n] by column.

        Returns:
            int64[n, 2], at least 0: (vision encoder, language model), in one unit. The sum over the samples of a step
            must be below 2 ** 63.
        """


@explain_call
@dataclass(frozen=True)
class TransformerCost:
    """Cost from the sizes of the networks.

    A layer of a transformer of hidden size h takes time in proportion to `h (6 h s + s^2)` for a sequence of s tokens:
    24576 s + s^2 for h = 4096, as in verl's balancing. For the vision encoder, that of an image or frame of p patches
    is `h p (p + 3 h)`, as in NeMo Automodel. The sum over layers is divided by hidden size x layers of the larger
    network, so that a sample of 4,000,000 tokens stays below 2 ** 63.

    Args:
        hidden_size: Of the language model.
        layers: Of the language model.
        vision_hidden_size: Of the vision encoder; 0 if there is none, or if it is frozen and its features are stored.
        vision_layers: Of the vision encoder.

    Raises:
        ConfigError: A size is out of range, or only one of those of the vision encoder is 0.
    """

    hidden_size: int
    layers: int
    _: KW_ONLY
    vision_hidden_size: int = 0
    vision_layers: int = 0

    def __post_init__(self) -> None:
        for name, least in (("hidden_size", 1), ("layers", 1), ("vision_hidden_size", 0), ("vision_layers", 0)):
            _check_integer(name, getattr(self, name), least, _MOST_PARAMETER)
        if (self.vision_hidden_size == 0) != (self.vision_layers == 0):
            raise ConfigError(
                f"vision_hidden_size={self.vision_hidden_size} and vision_layers={self.vision_layers} do not fit: give "
                "both, or neither if there is no vision encoder."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return ("tokens", "vision_patches", "vision_squares") if self.vision_layers else ("tokens",)

    def of(self, values: Mapping[str, Int64Array]) -> Int64Array:
        tokens = values["tokens"]
        costs = np.zeros((len(tokens), 2), np.int64)
        of_language = self.hidden_size * self.layers
        of_vision = self.vision_hidden_size * self.vision_layers
        larger = max(of_language, of_vision)
        forms = [(1, of_language, tokens * (tokens + 6 * self.hidden_size))]
        if self.vision_layers:
            patches, squares = values["vision_patches"], values["vision_squares"]
            forms.append((0, of_vision, squares + 3 * self.vision_hidden_size * patches))
        for index, weight, form in forms:
            costs[:, index] = form * ((weight << _WEIGHT_BITS) // larger) >> _WEIGHT_BITS
        return costs


@explain_call
@dataclass(frozen=True)
class ColumnCost:
    """Cost that is a measure as it is, such as the number of tokens. The language model has it; vision costs nothing.

    Args:
        column: Name of the measure.

    Raises:
        ConfigError: It is not a name.
    """

    column: str = "tokens"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise ConfigError(f"column={self.column!r} is not the name of a measure: give one such as 'tokens'.")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def of(self, values: Mapping[str, Int64Array]) -> Int64Array:
        column = values[self.column]
        return np.stack([np.zeros_like(column), column], axis=1)


@explain_call
@dataclass(frozen=True)
class FittedCost:
    """Cost `a sum l^2 + b sum l + c` of each network, with coefficients that `fit_cost` found.

    Print it and write it into your script: all ranks must have the same coefficients.

    Args:
        vision: (per square of the patches of an image or frame, per patch, per sample that has any).
        language: (per square of the tokens of a sample, per token, per sample).

    Raises:
        ConfigError: A coefficient is not an integer, or out of range.
    """

    vision: tuple[int, int, int]
    language: tuple[int, int, int]

    def __post_init__(self) -> None:
        for name, given in (("vision", self.vision), ("language", self.language)):
            if not isinstance(given, tuple) or len(given) != 3:
                raise ConfigError(f"{name}={given!r} is invalid: give three integers, as fit_cost returns them.")
            for number, coefficient in enumerate(given):
                most = 1 << (_COST_BITS - _LENGTH_BITS * (2 - number))
                _check_integer(f"{name}[{number}]", coefficient, 0, most)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("tokens", "vision_patches", "vision_squares") if any(self.vision) else ("tokens",)

    def of(self, values: Mapping[str, Int64Array]) -> Int64Array:
        tokens = values["tokens"]
        costs = np.zeros((len(tokens), 2), np.int64)
        costs[:, 1] = language_terms(tokens) @ np.array(self.language, np.int64)
        if any(self.vision):
            terms = vision_terms(values["vision_patches"], values["vision_squares"])
            costs[:, 0] = terms @ np.array(self.vision, np.int64)
        return costs


# --- from measured times --------------------------------------------------------------------------------------------

TERMS = ("vision squares", "vision patches", "samples with vision", "squares of tokens", "tokens", "samples")
"""What the times of `fit_cost` are a sum of."""
TERM_COLUMNS = ("tokens", "vision_patches", "vision_squares")
"""The measures from which the terms follow."""
_SAMPLES = TERMS.index("samples")


def vision_terms(patches: Int64Array, squares: Int64Array) -> Int64Array:
    """Returns int64[n, 3]: what the coefficients of `FittedCost.vision` are multiplied by."""
    return np.stack([squares, patches, (patches > 0).astype(np.int64)], axis=1)


def language_terms(tokens: Int64Array) -> Int64Array:
    """Returns int64[n, 3]: what the coefficients of `FittedCost.language` are multiplied by."""
    return np.stack([tokens * tokens, tokens, np.ones_like(tokens)], axis=1)


def terms_of(values: Mapping[str, Int64Array]) -> Int64Array:
    """Returns what `fit_cost` needs of each sample: sum it over the samples of a rank.

    Args:
        values: int64[n] for each of `TERM_COLUMNS`.

    Returns:
        int64[n, 6], in the order of `TERMS`.
    """
    vision = vision_terms(values["vision_patches"], values["vision_squares"])
    return np.concatenate([vision, language_terms(values["tokens"])], axis=1)


@explain_call
def fit_cost(sums: npt.ArrayLike, seconds: npt.ArrayLike) -> FittedCost:
    """Returns the cost that explains measured times best: non-negative least squares.

    Leave out the first steps, which compile and allocate. The steps must differ: deal at random while you measure, not
    balanced.

    Args:
        sums: [steps, ranks, 6]: `terms_of`, summed over the samples of each rank in each step. Or
            [steps, barriers, ranks, 6], where ranks wait for each other at each micro-batch.
        seconds: [steps]: time of each step, which is that of the slowest rank for each network; or [steps, ranks]: time
            that each rank computed, without its waits.

    Returns:
        A cost with integer coefficients. A constant time per step is fitted too, and left out, as are terms that are
        the same everywhere.

    Raises:
        ConfigError: The shapes do not fit, a number is negative or not finite, there are fewer times than unknowns, or
            the times do not depend on the sums.

    Warns:
        UserWarning: Some terms do not change, or always change together, or the times depend on something else as
            well: the fit is only for steps such as the measured ones. Equal numbers of samples cause no warning.
    """
    terms, times = np.asarray(sums, np.float64), np.asarray(seconds, np.float64)
    if terms.ndim == 3:
        terms = terms[:, None]
    steps, ranks = len(times) if times.ndim else 0, terms.shape[-2] if terms.ndim == 4 else 0
    if terms.ndim != 4 or terms.shape[-1] != len(TERMS) or times.shape not in ((steps,), (steps, ranks)):
        raise ConfigError(
            f"fit_cost was given sums of shape {np.shape(sums)} and seconds of shape {np.shape(seconds)}: give sums "
            f"[steps, ranks, {len(TERMS)}] or [steps, barriers, ranks, {len(TERMS)}] of the terms {', '.join(TERMS)}, "
            "and seconds [steps] or [steps, ranks]."
        )
    if len(terms) != steps:
        raise ConfigError(f"fit_cost was given the sums of {len(terms)} steps and the seconds of {steps}: give both.")
    if not np.isfinite(terms).all() or not np.isfinite(times).all() or (terms < 0).any() or (times < 0).any():
        raise ConfigError("fit_cost was given a negative number, or one that is not finite: leave such steps out.")
    scale = terms.max((0, 1, 2))
    least = terms.min((0, 1, 2))
    occurs = np.flatnonzero(scale - least > 1e-9 * scale)
    same = [TERMS[number] for number in np.flatnonzero(scale > 0) if number not in occurs and number != _SAMPLES]
    if same:
        warnings.warn(
            f"These are the same for every rank and step: {', '.join(same)}. What they cost is left out of the fit: it "
            "is for steps in which they are, such as full packs. For others, measure steps in which they differ.",
            stacklevel=3,
        )
    if times.size <= len(occurs) + 1:
        raise ConfigError(
            f"fit_cost was given {times.size} times for {len(occurs) + 1} unknowns: {_listed(occurs)}, and a constant. "
            f"Give at least {2 * len(occurs) + 2}."
        )
    terms = terms[..., occurs] / scale[occurs]
    if times.ndim == 2:
        rows, found = _fit(terms.sum(1).reshape(-1, len(occurs)), times.ravel())
    else:
        rows, found = _fit_slowest(terms, times, occurs < 3)
    _check_fit(rows, times.ravel(), found, occurs)
    coefficients = np.zeros(len(TERMS))
    coefficients[occurs] = found[:-1] / scale[occurs]
    return _with_integers(coefficients)


def _fit(rows: Float64Array, times: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Returns (rows with a constant, coefficients with that of the constant)."""
    rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    return rows, non_negative_least_squares(rows, times)


def _fit_slowest(
    terms: Float64Array, times: Float64Array, is_vision: npt.NDArray[np.bool_]
) -> tuple[Float64Array, Float64Array]:
    """Returns the same for times of the slowest ranks: which these are, is found out in turn with the coefficients.

    Args:
        terms: float64[steps, barriers, ranks, terms], each at most 1.
        times: float64[steps].
        is_vision: bool[terms].
    """
    found = np.ones(terms.shape[-1])
    best: tuple[float, Float64Array, Float64Array] | None = None
    for _ in range(20):
        picked = np.zeros((len(terms), terms.shape[-1]))
        for network in (is_vision, ~is_vision):
            loads = (terms * (found * network)).sum(-1)  # [steps, barriers, ranks]
            slowest = np.take_along_axis(terms, loads.argmax(-1)[..., None, None], axis=2)[:, :, 0]
            picked += slowest.sum(1) * network
        rows, solved = _fit(picked, times)
        error = float(((rows @ solved - times) ** 2).sum())
        if best is None or error < best[0]:
            best = error, rows, solved
        if np.array_equal(solved[:-1], found):
            break
        found = solved[:-1]
    assert best is not None
    return best[1], best[2]


def _check_fit(rows: Float64Array, times: Float64Array, found: Float64Array, occurs: Int64Array) -> None:
    """Warns or raises where a fit says little; see `fit_cost`."""
    spread = ((times - times.mean()) ** 2).sum()
    unexplained = ((rows @ found - times) ** 2).sum()
    if not found[:-1].any() or spread <= 0:
        raise ConfigError(
            "The times do not depend on the sums: a constant time per step explains them as well. Measure steps whose "
            "samples differ more, without balance, and check that the sums are those of the same steps."
        )
    names = [*(TERMS[number] for number in occurs), "a constant time per step"]
    _, singular, directions = np.linalg.svd(
        rows / np.maximum(np.linalg.norm(rows, axis=0), 1e-300), full_matrices=False
    )
    mixed = np.abs(directions[singular < singular[0] * 1e-6]).max(0, initial=0.0) > 0.1
    if mixed.any():
        together = ", ".join(name for name, is_mixed in zip(names, mixed, strict=True) if is_mixed)
        warnings.warn(
            f"These cannot be separated, because they always change together in the measured steps: {together}. "
            "The fit predicts only such steps: measure steps in which they differ, such as packs of other lengths.",
            stacklevel=4,
        )
    if unexplained > (1 - _LITTLE_EXPLAINED) * spread:
        share = max(0.0, 1 - unexplained / spread)
        warnings.warn(
            f"The sums explain only {share:.0%} of the variance of the times: they depend on something else too, such "
            "as waiting for data. Balance can only mend what the sums explain.",
            stacklevel=4,
        )


def _with_integers(coefficients: Float64Array) -> FittedCost:
    """Returns a cost with the ratios of coefficients, with as many digits as `_COST_BITS` allow."""
    powers = np.array([2, 1, 0] * 2) * _LENGTH_BITS
    largest = np.ldexp(coefficients, powers).max()
    whole = np.rint(coefficients / largest * 2.0**_COST_BITS).astype(np.int64).tolist()
    return FittedCost(tuple(whole[:3]), tuple(whole[3:]))


def non_negative_least_squares(matrix: Float64Array, target: Float64Array) -> Float64Array:
    """Returns x >= 0 with the least |matrix x - target|: Lawson and Hanson, "Solving Least Squares Problems", 1974.

    Args:
        matrix: float64[rows, columns].
        target: float64[rows].

    Returns:
        float64[columns].
    """
    columns = matrix.shape[1]
    norms = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    scaled = matrix / norms
    solution, is_free = np.zeros(columns), np.zeros(columns, bool)
    tolerance = 1e-12 * max(1e-300, float(np.linalg.norm(target)))
    for _ in range(30 * columns):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[is_free] = -np.inf
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        is_free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(columns)
            trial[is_free] = np.linalg.lstsq(scaled[:, is_free], target, rcond=None)[0]
            bad = is_free & (trial <= 0)
            if not bad.any():
                break
            step = (solution[bad] / np.maximum(solution[bad] - trial[bad], 1e-300)).min()
            solution += step * (trial - solution)
            is_free &= solution > 1e-14 * max(1.0, float(solution.max()))
            solution[~is_free] = 0.0
        solution = trial
    found: Float64Array = solution / norms
    return found


def _check_integer(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name}={value!r} is invalid: give an integer from {least} to {most:,}.")


def _listed(numbers: Int64Array) -> str:
    return ", ".join(TERMS[number] for number in numbers)
