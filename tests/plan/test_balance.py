from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.balance_mixture import draw_packs, sum_over_packs
from energon_dali.errors import ArgumentError, ConfigError
from energon_dali.plan.balance import ORDERS, PER, Balance, Order, Per, balance_of, bound_of, deal_balanced, loads_of
from energon_dali.plan.costs import ColumnCost, TransformerCost
from energon_dali.plan.global_batches import GlobalBatchPlan
from energon_dali.plan.global_step import deal
from energon_dali.plan.packs import PackRule
from energon_dali.plan.rng import Int64Array
from tests.plan.test_packs import packed, source

MODEL = TransformerCost(4096, 32, vision_hidden_size=1280, vision_layers=32)
BALANCES = [Balance(ColumnCost(), per=per, order=order) for per in PER for order in ORDERS]

small_costs = st.integers(0, 3)
any_costs = st.one_of(small_costs, st.integers(0, 10_000), st.integers(0, 1 << 60))


@st.composite
def steps(draw: st.DrawFn, costs: st.SearchStrategy[int] = any_costs) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Returns (costs, counts, homes) of a step, whose slots may have different counts."""
    ranks, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    flat = draw(st.lists(st.integers(0, 3), min_size=ranks * micro_batches, max_size=ranks * micro_batches))
    counts = np.array(flat, np.int64).reshape(ranks, micro_batches)
    n = int(counts.sum())
    values = draw(st.lists(st.tuples(costs, costs), min_size=n, max_size=n))
    homes = draw(st.lists(st.integers(0, ranks - 1), min_size=n, max_size=n))
    return np.array(values, np.int64).reshape(n, 2), counts, np.array(homes, np.int64)


def draw_costs(n: int, seed: int = 0) -> Int64Array:
    """Returns costs such as those of packs: most need little of one network."""
    random = np.random.default_rng(seed)
    vision = random.integers(0, 1000, n) * (random.random(n) < 0.3)
    return np.stack([vision, random.integers(200, 800, n)], axis=1)


@given(steps(), st.sampled_from(BALANCES))
def test_every_slot_gets_its_count(step: tuple[Int64Array, Int64Array, Int64Array], balance: Balance) -> None:
    costs, counts, homes = step
    slots = deal_balanced(costs, counts, homes, balance)
    assert slots.dtype == np.int64
    assert np.bincount(slots, minlength=counts.size).tolist() == counts.ravel().tolist()
    again = deal_balanced(costs.copy(), counts.copy(), homes.copy(), balance)
    assert slots.tolist() == again.tolist()


@given(steps(st.integers(0, 1 << 40)), st.sampled_from(PER))
def test_no_dealing_is_better_than_the_bound(step: tuple[Int64Array, Int64Array, Int64Array], per: Per) -> None:
    costs, counts, homes = step
    slots = deal_balanced(costs, counts, homes, Balance(ColumnCost(), per=per))
    in_order = np.repeat(np.arange(counts.size), counts.ravel())
    bound = bound_of(costs, counts, per)
    for dealt in (slots, in_order):
        assert loads_of(costs, dealt, counts.shape, per).max(1).sum() >= bound


def best_of_all(costs: Int64Array, ranks: int) -> int:
    """Returns the smallest sum of the largest loads, of all ways to give two items to each rank."""

    def search(left: tuple[int, ...], loads: list[Int64Array]) -> int:
        if not left:
            return int(np.max(loads, axis=0).sum())
        first, *others = left
        return min(
            search(tuple(one for one in others if one != other), [*loads, costs[first] + costs[other]])
            for other in others
        )

    return search(tuple(range(2 * ranks)), [])


@pytest.mark.parametrize("seed", range(8))
def test_next_to_the_best_of_all_dealings(seed: int) -> None:
    costs, counts = draw_costs(8, seed), np.full((4, 2), 1)
    best = best_of_all(costs, 4)
    slots = deal_balanced(costs, counts, np.zeros(8, np.int64), Balance(ColumnCost()))
    dealt = loads_of(costs, slots, (4, 2), "step").max(1).sum()
    assert bound_of(costs, counts, "step") <= best <= dealt <= 1.1 * best


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize(
    ("ranks", "micro_batches", "items"), [(8, 4, 1), (7, 3, 2), (2, 2, 50), (32, 1, 4), (3, 1, 40)]
)
def test_better_than_dealing_in_order(ranks: int, micro_batches: int, items: int, per: Per, order: Order) -> None:
    counts = np.full((ranks, micro_batches), items)
    for seed in range(5):
        costs = draw_costs(counts.size * items, seed)
        slots = deal_balanced(
            costs, counts, np.zeros(len(costs), np.int64), Balance(ColumnCost(), per=per, order=order)
        )
        in_order = np.repeat(np.arange(counts.size), items)
        ours, theirs = (balance_of(loads_of(costs, one, (ranks, micro_batches), per)) for one in (slots, in_order))
        assert ours > theirs


@given(steps(), st.sampled_from(BALANCES))
def test_equal_costs_go_home_as_without_balance(
    step: tuple[Int64Array, Int64Array, Int64Array], balance: Balance
) -> None:
    _, counts, homes = step
    costs = np.full((len(homes), 2), 5)
    slots = deal_balanced(costs, counts, homes, balance)
    ranks = slots // counts.shape[1]
    arrived = np.bincount(homes, minlength=len(counts))
    assert (ranks == homes).sum() == np.minimum(arrived, counts.sum(1)).sum()
    if len(homes):
        assert ranks.tolist() == deal(homes, counts.sum(1)).tolist()


@given(steps(small_costs), st.sampled_from(BALANCES))
def test_no_two_equal_items_would_rather_change_places(
    step: tuple[Int64Array, Int64Array, Int64Array], balance: Balance
) -> None:
    costs, counts, homes = step
    ranks = deal_balanced(costs, counts, homes, balance) // counts.shape[1]
    for one in range(len(homes)):
        for other in np.flatnonzero((costs == costs[one]).all(1)):
            strangers = ranks[one] != homes[one] and ranks[other] != homes[other]
            assert not (strangers and ranks[other] == homes[one])


def test_costs_of_nothing() -> None:
    slots = deal_balanced(np.zeros((6, 2), np.int64), np.full((3, 2), 1), np.array([2, 2, 1, 1, 0, 0]), BALANCES[0])
    assert slots.tolist() == [4, 5, 2, 3, 0, 1]
    assert balance_of(np.zeros((1, 3, 2), np.int64)) == 1.0
    assert (
        deal_balanced(np.zeros((0, 2), np.int64), np.zeros((2, 2), np.int64), np.zeros(0, np.int64), BALANCES[0]).size
        == 0
    )


def test_one_rank_keeps_the_order() -> None:
    costs = draw_costs(6)
    slots = deal_balanced(costs, np.array([[2, 2, 2]]), np.zeros(6, np.int64), Balance(MODEL))
    assert slots.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("largest", [10**6, (1 << 62) // 16])
def test_one_item_larger_than_all_others_together(largest: int) -> None:
    costs = draw_costs(64)
    costs[17] = (largest, largest // 2)
    slots = deal_balanced(costs, np.full((16, 4), 1), np.zeros(64, np.int64), Balance(MODEL))
    loads = loads_of(costs, slots, (16, 4), "step")[0]
    rank = slots[17] // 4
    assert loads[rank].tolist() == loads.max(0).tolist()
    # It determines the time of the step; next to it are small ones.
    assert loads[rank, 1] - largest // 2 <= np.sort(costs[:, 1])[:32].sum() // 8
    assert loads_of(costs, slots, (16, 4), "step").max(1).sum() <= 1.01 * bound_of(costs, np.full((16, 4), 1), "step")


def spread_costs(n: int) -> Int64Array:
    """Returns costs that no version of numpy changes."""
    numbers = np.arange(n)
    return np.stack([numbers * 7919 % 1000 * (numbers % 3 == 0), 200 + numbers * 6007 % 601], axis=1)


def test_golden_values() -> None:
    """The same on every machine, and with every version: another dealing would change what running jobs compute."""
    costs, homes = spread_costs(24), np.arange(24) % 4
    dealt = {
        f"{one.per} {one.order}": deal_balanced(costs, np.full((4, 3), 2), homes, one).tolist() for one in BALANCES
    }
    assert dealt == GOLDEN
    costs = spread_costs(4096)
    slots = deal_balanced(costs, np.full((1024, 4), 1), np.zeros(4096, np.int64), BALANCES[0])
    assert hashlib.sha256(slots.astype("<i8").tobytes()).hexdigest() == GOLDEN_DIGEST


GOLDEN: dict[str, list[int]] = {
    "step as_dealt": [0, 0, 1, 1, 2, 2, 6, 6, 3, 9, 9, 7, 3, 10, 4, 4, 5, 10, 11, 11, 7, 8, 8, 5],
    "step pipeline": [1, 0, 2, 1, 2, 0, 7, 6, 3, 11, 9, 6, 5, 9, 3, 4, 5, 11, 10, 10, 8, 8, 7, 4],
    "micro_batch as_dealt": [9, 10, 1, 9, 4, 7, 3, 7, 4, 6, 1, 10, 0, 11, 2, 0, 5, 8, 6, 8, 5, 3, 2, 11],
    "micro_batch pipeline": [10, 11, 2, 10, 5, 8, 4, 8, 5, 7, 2, 11, 1, 9, 0, 1, 3, 6, 7, 6, 3, 4, 0, 9],
}
GOLDEN_DIGEST = "378c3ae62598b0f50634a75b1095fa5c7eaeb7d0b68f8cc466a5a6c951576fee"


@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize("per", PER)
def test_pipelines_have_small_micro_batches_at_both_ends(per: Per, items: int) -> None:
    costs, counts = draw_costs(8 * 5 * items), np.full((8, 5), items)
    slots = deal_balanced(costs, counts, np.zeros(len(costs), np.int64), Balance(MODEL, per=per, order="pipeline"))
    sums = np.bincount(slots, costs.sum(1), minlength=40).reshape(8, 5)
    if per == "micro_batch":
        sums = sums.sum(0)[None]
    for of_rank in sums:
        assert of_rank.tolist()[:3] == sorted(of_rank[:3])
        assert of_rank.tolist()[2:] == sorted(of_rank[2:], reverse=True)
        assert max(of_rank[0], of_rank[-1]) <= min(of_rank[1:-1])


def test_pipelines_with_different_counts() -> None:
    costs, counts = draw_costs(13), np.array([[3, 2, 2], [2, 2, 2]])
    for balance in BALANCES:
        slots = deal_balanced(costs, counts, np.zeros(13, np.int64), balance)
        assert np.bincount(slots, minlength=6).tolist() == [3, 2, 2, 2, 2, 2]


def test_micro_batches_get_items_of_similar_length() -> None:
    costs = np.stack([np.zeros(32, np.int64), np.random.default_rng(0).permutation(32)], axis=1)
    slots = deal_balanced(costs, np.full((4, 4), 2), np.zeros(32, np.int64), Balance(ColumnCost(), per="micro_batch"))
    for number in range(4):
        lengths = costs[slots % 4 == number, 1]
        assert lengths.max() - lengths.min() == 7
    assert costs[slots % 4 == 0, 1].min() == 24  # the longest come first


@pytest.mark.parametrize(("ranks", "least"), [(64, 0.91), (256, 0.93)])
@pytest.mark.parametrize(
    "vision", [{"vision_hidden_size": 1280, "vision_layers": 32}, {"vision_hidden_size": 3200, "vision_layers": 45}]
)
def test_ranks_of_a_mixture_hardly_wait(ranks: int, least: float, vision: dict[str, int]) -> None:
    costs, counts = costs_of_mixture(ranks, TransformerCost(4096, 32, **vision)), np.full((ranks, 4), 1)
    homes = np.zeros(len(costs), np.int64)
    loads = loads_of(costs, deal_balanced(costs, counts, homes, Balance(MODEL)), (ranks, 4), "step")
    assert balance_of(loads) >= least
    at_random = balance_of(loads_of(costs, np.arange(4 * ranks), (ranks, 4), "step"))
    assert at_random < 0.85 * balance_of(loads)
    costs[:, 0] = 0
    loads = loads_of(costs, deal_balanced(costs, counts, homes, Balance(MODEL)), (ranks, 4), "step")
    assert bound_of(costs, counts, "step") / loads.max(1).sum() >= 0.95


def test_micro_batches_of_a_mixture() -> None:
    costs, counts = costs_of_mixture(64, MODEL), np.full((64, 4), 1)
    slots = deal_balanced(costs, counts, np.zeros(256, np.int64), Balance(MODEL, per="micro_batch"))
    loads = loads_of(costs, slots, (64, 4), "micro_batch")
    assert bound_of(costs, counts, "micro_batch") / loads.max(1).sum() >= 0.94
    assert balance_of(loads) >= 1.35 * balance_of(loads_of(costs, np.arange(256), (64, 4), "micro_batch"))


def costs_of_mixture(ranks: int, cost: TransformerCost) -> Int64Array:
    measures, packs = draw_packs(np.random.default_rng(3), 4 * ranks)
    return sum_over_packs(cost.of(measures), packs, 4 * ranks)


def test_balance_is_a_mean_over_a_maximum() -> None:
    loads = np.array([[[1, 4], [3, 2]], [[2, 2], [2, 2]]])
    assert balance_of(loads) == (2 + 3 + 2 + 2) / (3 + 4 + 2 + 2)
    assert balance_of(loads[0]) == (2 + 3) / (3 + 4)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cost": 3}, "cost=3 is not a cost: give TransformerCost"),
        ({"cost": ColumnCost}, "is not a cost"),
        ({"per": "batch"}, "per='batch' is invalid: choose 'step' or 'micro_batch'"),
        ({"order": "random"}, "order='random' is invalid: choose 'as_dealt' or 'pipeline'"),
    ],
)
def test_invalid_options(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Balance(**{"cost": ColumnCost(), **wrong})


def test_wrong_names_are_explained() -> None:
    with pytest.raises(ArgumentError, match="per"):
        Balance(ColumnCost(), pre="step")  # type: ignore[call-arg]


@dataclass(frozen=True)
class Returns:
    """A cost that returns what a function makes of the tokens."""

    function: Callable[[Int64Array], Any]
    columns: tuple[str, ...] = ("tokens",)

    def of(self, values: Mapping[str, Int64Array]) -> Any:
        return self.function(values["tokens"])


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda tokens: np.stack([tokens, tokens * 1.5], axis=1), r"float64\[{n}, 2\] for"),
        (lambda tokens: np.full((len(tokens), 2), np.nan), r"float64\[{n}, 2\] for"),
        (lambda tokens: tokens, r"int64\[{n}\] for"),
        (lambda tokens: np.stack([tokens] * 3, axis=1), r"int64\[{n}, 3\] for"),
        (lambda tokens: np.stack([tokens, tokens], axis=1)[1:], r"int64\[{less}, 2\] for"),
        (lambda tokens: np.stack([tokens, tokens], axis=1).astype(np.uint64), r"uint64\[{n}, 2\] for"),
        (lambda tokens: [[0, int(one)] for one in tokens], "a list for"),
        (lambda tokens: np.stack([tokens, 2 - tokens], axis=1), r"int64\[{n}, 2\] with numbers down to -\d+ for"),
    ],
)
def test_what_a_cost_of_a_user_returns_is_checked(
    function: Callable[[Int64Array], Any], said: str, packs: bool
) -> None:
    plan, n = plan_with(Returns(function), packs=packs)
    said = said.replace("{n}", str(n)).replace("{less}", str(n - 1))
    with pytest.raises(ConfigError, match=rf"Returns\.of returned {said} {n} samples.*int64\[{n}, 2\], at least 0"):
        plan.dealt(plan.step_at(0, 0), 0)


@pytest.mark.parametrize("packs", [False, True])
def test_small_integers_are_costs_and_their_sums_do_not_overflow(packs: bool) -> None:
    def small(tokens: Int64Array) -> Any:
        return np.stack([tokens * 0, tokens * 0 + 100], axis=1).astype(np.int8)

    plan, n = plan_with(Returns(small), packs=packs)
    sums = plan.sums_by_slot(plan.step_at(0, 0))[1]
    assert sums is not None
    assert sums.sum((0, 1)).tolist() == [0, 100 * n]


def plan_with(cost: Returns, *, packs: bool) -> tuple[GlobalBatchPlan, int]:
    """Returns (a plan that is balanced by a cost, samples of its first step)."""
    plan = packed(source(97), [97], rule=PackRule(64, window=40), balance=Balance(cost))
    if packs:
        return plan, plan.step_at(0, 0).size
    return GlobalBatchPlan(source(97), 6, 1, 1, 1, measured=plan.measured, balance=plan.balance), 6


def test_sums_over_micro_batches_are_no_less_equal_than_without_balance() -> None:
    """Which rank has which item of a micro-batch is free where ranks wait at each: the sums of ranks decide."""
    costs, counts = costs_of_mixture(64, MODEL), np.full((64, 4), 1)
    slots = deal_balanced(costs, counts, np.zeros(256, np.int64), Balance(MODEL, per="micro_batch"))
    totals = loads_of(costs, slots, (64, 4), "step").sum(-1)[0]
    at_random = loads_of(costs, np.arange(256), (64, 4), "step").sum(-1)[0]
    assert totals.max() < at_random.max()
    assert totals.std() < 0.5 * at_random.std()
