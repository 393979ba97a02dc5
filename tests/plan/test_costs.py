from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_dali.errors import ConfigError
from energon_dali.plan.costs import (
    MEASURES,
    ColumnCost,
    Cost,
    FittedCost,
    TransformerCost,
    fit_cost,
    non_negative_least_squares,
    terms_of,
)
from energon_dali.plan.rng import Int64Array

COSTS = [
    TransformerCost(4096, 32, vision_hidden_size=1280, vision_layers=32),
    TransformerCost(64, 1, vision_hidden_size=8192, vision_layers=100),
    TransformerCost(4096, 32),
    ColumnCost(),
    FittedCost((3, 5, 7), (2, 11, 13)),
]


def measures(**columns: list[int]) -> dict[str, Int64Array]:
    return {name: np.array(values, np.int64) for name, values in columns.items()}


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_costs_are_integers_of_two_networks(cost: Cost) -> None:
    values = measures(tokens=[0, 1, 1000], vision_patches=[0, 4, 500], vision_squares=[0, 16, 250_000])
    assert isinstance(cost, Cost)
    assert set(cost.columns) <= set(MEASURES)
    costs = cost.of({name: values[name] for name in cost.columns})
    assert costs.dtype == np.int64
    assert costs.shape == (3, 2)
    assert (np.diff(costs, axis=0) >= 0).all()
    assert eval(repr(cost)) == cost


def test_language_cost_is_the_published_form() -> None:
    costs = TransformerCost(4096, 32).of(measures(tokens=[1, 100, 32_768]))
    assert costs[:, 1].tolist() == [24576 * s + s * s for s in (1, 100, 32_768)]
    assert not costs[:, 0].any()


def test_vision_cost_is_the_published_form_per_image() -> None:
    values = measures(tokens=[0, 0], vision_patches=[1024, 2048], vision_squares=[1024**2, 2 * 1024**2])
    costs = TransformerCost(1280, 32, vision_hidden_size=1280, vision_layers=32).of(values)
    assert costs[:, 0].tolist() == [1024 * (1024 + 3 * 1280), 2 * 1024 * (1024 + 3 * 1280)]


def test_networks_have_one_unit() -> None:
    """A language model of a quarter of the width times layers has a quarter of the cost, but for rounding."""
    cost = TransformerCost(1024, 32, vision_hidden_size=1024, vision_layers=128)
    costs = cost.of(measures(tokens=[1000], vision_patches=[1000], vision_squares=[10**6]))
    assert costs[0].tolist() == [1000 * (1000 + 3 * 1024), 1000 * (1000 + 6 * 1024) // 4]


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_a_million_tokens_do_not_overflow(cost: Cost) -> None:
    million = 1 << 20
    values = measures(tokens=[million] * 1000, vision_patches=[million] * 1000, vision_squares=[million**2] * 1000)
    costs = cost.of(values)
    assert (costs[:, 1] > 0).all()
    assert (costs >= 0).all()
    assert int(costs.astype(object).sum()) < 1 << 63


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hidden_size": 0}, "hidden_size=0 is invalid: give an integer from 1"),
        ({"layers": 2.5}, "layers=2.5 is invalid: give an integer"),
        ({"layers": True}, "layers=True is invalid"),
        ({"vision_hidden_size": 8}, "vision_hidden_size=8 and vision_layers=0 do not fit"),
    ],
)
def test_invalid_sizes(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TransformerCost(**{"hidden_size": 64, "layers": 2, **wrong})


def test_invalid_columns_and_coefficients() -> None:
    with pytest.raises(ConfigError, match="column='' is not the name of a measure"):
        ColumnCost("")
    with pytest.raises(ConfigError, match=r"vision\[1\]=-1 is invalid"):
        FittedCost((0, -1, 0), (1, 1, 1))
    with pytest.raises(ConfigError, match=r"language=\(1,\) is invalid: give three integers"):
        FittedCost((0, 0, 0), (1,))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"language\[0\]=\d+ is invalid"):
        FittedCost((0, 0, 0), (1 << 20, 0, 0))  # a million tokens would be above 2 ** 50


# --- fitting ---------------------------------------------------------------------------------------------------------


def measured(steps: int = 40, ranks: int = 8, samples: int = 6, seed: int = 0) -> Int64Array:
    """Returns int64[steps, ranks, 6]: the terms of random samples, summed over those of each rank."""
    random = np.random.default_rng(seed)
    patches = random.integers(0, 4000, (steps * ranks * samples)) * (random.random(steps * ranks * samples) < 0.4)
    tokens = random.integers(10, 8000, steps * ranks * samples) + patches // 4
    terms = terms_of({"tokens": tokens, "vision_patches": patches, "vision_squares": patches * patches})
    is_there = random.random(len(terms)) < 0.8
    summed: Int64Array = (terms * is_there[:, None]).reshape(steps, ranks, samples, 6).sum(2)
    return summed


TRUE = np.array([2e-9, 8e-6, 0.0, 1e-9, 2.5e-5, 1e-3])
"""Seconds per term: a vision encoder, and a language model with a constant per sample."""


def slowest(terms: Int64Array) -> Any:
    """Returns the seconds of steps in which all ranks wait for the slowest, for each network."""
    return (terms[..., :3] @ TRUE[:3]).max(-1) + (terms[..., 3:] @ TRUE[3:]).max(-1)


def ratios(cost: FittedCost) -> Any:
    """Returns the cost of typical samples, relative to that of one of them."""
    values = measures(tokens=[100, 1000, 8000], vision_patches=[0, 400, 4000], vision_squares=[0, 160_000, 16_000_000])
    costs = cost.of(values).astype(float)
    return costs / costs[2, 1]


def expected_ratios() -> Any:
    values = measures(tokens=[100, 1000, 8000], vision_patches=[0, 400, 4000], vision_squares=[0, 160_000, 16_000_000])
    terms = terms_of(values)
    costs = np.stack([terms[:, :3] @ TRUE[:3], terms[:, 3:] @ TRUE[3:]], axis=1)
    return costs / costs[2, 1]


def test_fit_finds_the_law_of_each_rank() -> None:
    terms = measured()
    assert ratios(fit_cost(terms, terms @ TRUE + 0.2)) == pytest.approx(expected_ratios(), rel=0.01, abs=1e-4)


def test_fit_finds_the_law_from_the_slowest_ranks() -> None:
    terms = measured(steps=200)
    assert ratios(fit_cost(terms, slowest(terms) + 0.2)) == pytest.approx(expected_ratios(), rel=0.05, abs=2e-3)


def test_fit_finds_the_law_where_ranks_wait_at_each_micro_batch() -> None:
    terms = measured(steps=400).reshape(200, 2, 8, 6)
    fitted = fit_cost(terms, slowest(terms).sum(-1) + 0.2)
    assert ratios(fitted) == pytest.approx(expected_ratios(), rel=0.05, abs=2e-3)


def test_fit_of_noisy_times() -> None:
    terms = measured(steps=400)
    times = terms @ TRUE * np.random.default_rng(1).lognormal(0, 0.05, (400, 8))
    assert ratios(fit_cost(terms, times)) == pytest.approx(expected_ratios(), rel=0.1, abs=0.02)


def test_fit_of_texts_alone() -> None:
    terms = measured()
    terms[..., :3] = 0
    fitted = fit_cost(terms, terms @ TRUE)
    assert fitted.vision == (0, 0, 0)
    assert fitted.columns == ("tokens",)
    assert ratios(fitted)[:, 1] == pytest.approx(expected_ratios()[:, 1], rel=0.01)
    assert eval(repr(fitted)) == fitted


def test_fit_warns_of_terms_that_always_change_together() -> None:
    terms = measured()
    terms[..., :3] = 0
    terms[..., 4] = 3 * terms[..., 3]
    with pytest.warns(UserWarning, match=r"cannot be separated.*: squares of tokens, tokens\."):
        fit_cost(terms, terms @ TRUE)


def test_fit_of_full_packs_leaves_out_what_is_the_same() -> None:
    terms = measured()
    terms[..., 4], terms[..., 5] = 32_768, 8
    with pytest.warns(UserWarning, match=r"the same for every rank and step: tokens\."):
        fitted = fit_cost(terms, terms @ TRUE)
    assert fitted.language[0] / fitted.vision[1] == pytest.approx(TRUE[3] / TRUE[1], rel=0.02)
    assert fitted.language[1:] == (0, 0)


def test_fit_warns_of_times_that_depend_on_something_else() -> None:
    terms = measured()
    times = terms @ TRUE
    with pytest.warns(UserWarning, match="explain only .* of the variance"):
        fit_cost(terms, times + np.random.default_rng(0).exponential(5 * times.std(), times.shape))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (np.full((40, 8), 0.5), "do not depend on the sums"),
        (np.full((40, 7), 0.5), r"sums of shape \(40, 8, 6\) and seconds of shape \(40, 7\)"),
        (np.full(39, 0.5), "sums of 40 steps and the seconds of 39"),
        (np.full((40, 8), np.nan), "not finite"),
    ],
)
def test_fit_refuses_what_says_nothing(times: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit_cost(measured(), times)


def test_fit_refuses_too_few_steps() -> None:
    with pytest.raises(ConfigError, match=r"5 times for 7 unknowns: vision squares, .*Give at least 14"):
        fit_cost(measured(steps=5), np.ones(5))


@given(st.integers(1, 6), st.integers(0, 1000))
def test_least_squares_are_non_negative_and_best(columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix, target = random.standard_normal((20, columns)), random.standard_normal(20)
    found = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (target - matrix @ found)
    assert (found >= 0).all()
    assert (gradient <= 1e-8).all()  # no coefficient that is 0 would help
    assert np.abs(gradient[found > 0]).max(initial=0.0) <= 1e-8
