"""Deals the items of a global batch to ranks and micro-batches so that no rank waits for another.

Items are packs, or samples where there are no packs. Each has two costs, of the vision encoder and of the language
model, in one unit. Each of both is a barrier: a rank that is done waits until the slowest is. So the time of a step is
the sum, over barriers, of the largest load of a rank.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.plan.costs import Cost
from energon_dali.plan.rng import Int64Array

Per = Literal["step", "micro_batch"]
PER: tuple[Per, ...] = ("step", "micro_batch")
Order = Literal["as_dealt", "pipeline"]
ORDERS: tuple[Order, ...] = ("as_dealt", "pipeline")

_LOAD_BITS = 29
"""Loads are below 2 ** 29 while they are compared: four squares of a sum of two of them fit 64 bits together."""
_WINDOW = 8
"""Items of a rank that are tried at once for a swap."""
_PAIRS_PER_RANK = 12
_LEAST_PAIRS = 2048
"""Pairs of ranks that are tried for swaps: `_PAIRS_PER_RANK` per rank, and `_LEAST_PAIRS`."""
_LEAST_PAIRS_OF_ROUND = 128
"""Pairs of a round, about, if few ranks have much: each of them tries several partners."""
_THRESHOLD_EIGHTHS = 5
"""Where between the mean load and the largest one a load begins to be too much, in eighths."""
_IDLE_ROUNDS = 24
"""Rounds without a swap after which no more are tried."""
_NEAR_ENOUGH = 128
"""Swapping ends when the loads exceed their bound by less than 1 / this number."""
_WEIGHTS = ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1))
"""Weights of vision and language, relative to their largest items, where items are sorted by the larger of both."""


@explain_call
@dataclass(frozen=True)
class Balance:
    """Deals each global batch so that all ranks have equally much to compute.

    It only decides which rank gets which samples of a step, in which of its micro-batches. Every step has the samples
    that it would have without it, so the optimizer sees the same batches, and it may change when a state is restored.

    Args:
        cost: What a sample costs, from its measures: `TransformerCost`, `ColumnCost`, the result of `fit_cost`, or an
            object of yours with `columns` and `of`.
        per: Where ranks wait for each other. "step": once per step, as with DDP and with Megatron's data parallelism;
            the sums over the micro-batches of a step are balanced. "micro_batch": at each micro-batch, as with FSDP;
            micro-batches of one number get items of similar cost.
        order: Order of the micro-batches of a rank. "as_dealt": with per="step" that of the samples in the plan, with
            "micro_batch" the largest first, so that too little memory shows at once. "pipeline": the smallest at both
            ends of a step, where stages of a pipeline wait for it to fill and to drain.

    Raises:
        ConfigError: An argument is invalid.
    """

    cost: Cost
    _: KW_ONLY
    per: Per = "step"
    order: Order = "as_dealt"

    def __post_init__(self) -> None:
        if not callable(getattr(self.cost, "of", None)) or not isinstance(getattr(self.cost, "columns", None), tuple):
            raise ConfigError(
                f"cost={self.cost!r} is not a cost: give TransformerCost(...), ColumnCost(...), or an object with "
                "`columns`, a tuple of names of measures, and `of`, a method from their values to int64[n, 2]."
            )
        for name, value, allowed in (("per", self.per, PER), ("order", self.order, ORDERS)):
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is invalid: choose {' or '.join(map(repr, allowed))}.")


def deal_balanced(costs: Int64Array, counts: Int64Array, homes: Int64Array, balance: Balance) -> Int64Array:
    """Returns the slot of each item of a step: `rank * micro_batches + micro_batch`.

    Integers alone decide, so that every machine finds the same slots. Among items of equal cost, as many as possible
    go to their home rank, and the others are in order.

    Args:
        costs: int64[n, 2], at least 0: cost of each item for the vision encoder and for the language model.
        counts: int64[ranks, micro_batches]: items of each slot, which sum to n. They may differ, and be 0.
        homes: int64[n]: rank that each item should go to if nothing else matters, 0 <= home < ranks.
        balance: Where ranks wait, and the order of micro-batches.

    Returns:
        int64[n]: slot s comes `counts.flat[s]` times.
    """
    ranks, micro_batches = counts.shape
    if not len(costs):
        return np.zeros(0, np.int64)
    loads = _scaled(costs, counts)
    if balance.per == "micro_batch":
        slots = _dealt_per_micro_batch(loads, counts, balance.order)
        return slots[_exchange_equals(costs, slots // micro_batches, homes, ranks)]
    rank = _dealt_to_ranks(loads, counts.sum(1), _PAIRS_PER_RANK * ranks + _LEAST_PAIRS)
    rank = rank[_exchange_equals(costs, rank, homes, ranks)]
    return _slots_of_ranks(loads.sum(1), rank, counts, balance.order)


# --- what a dealing is worth ----------------------------------------------------------------------------------------


def loads_of(costs: Int64Array, slots: Int64Array, shape: tuple[int, int], per: Per) -> Int64Array:
    """Returns what each rank has to compute before each barrier.

    Args:
        costs: int64[n, 2]: cost of each item.
        slots: int64[n]: slot of each item, as `deal_balanced` returns it.
        shape: (ranks, micro_batches).
        per: Where ranks wait.

    Returns:
        int64[barriers, ranks, 2]: one barrier for a step, or one for each micro-batch.
    """
    return barriers_of(sum_by_slot(costs, slots, shape), per)


def sum_by_slot(values: Int64Array, slots: Int64Array, shape: tuple[int, int]) -> Int64Array:
    """Returns int64[ranks, micro_batches, k]: the sums of values of the items of each slot; see `loads_of`.

    Args:
        values: int64[n, k].
        slots: int64[n]: slot of each item.
        shape: (ranks, micro_batches).
    """
    sums = np.zeros((shape[0] * shape[1], values.shape[1]), np.int64)
    np.add.at(sums, slots, values)
    return sums.reshape(*shape, values.shape[1])


def barriers_of(sums: Int64Array, per: Per) -> Int64Array:
    """Returns int64[barriers, ranks, k] of int64[ranks, micro_batches, k]; see `loads_of`."""
    barriers: Int64Array = sums.sum(1)[None] if per == "step" else sums.transpose(1, 0, 2)
    return barriers


def balance_of(loads: npt.NDArray[np.integer]) -> float:
    """Returns the share of their time in which ranks compute: mean over max load, both barriers together.

    It is (sum over barriers of the mean load of the ranks) / (sum over barriers of the largest load). Vision encoder
    and language model are a barrier each, which all ranks pass one after the other. That of several steps is the mean.
    1 minus it is the share of waiting.

    Args:
        loads: int64[..., ranks, 2], of one step, as `loads_of` returns them.

    Returns:
        0 < balance <= 1; 1.0 if there is nothing to compute.
    """
    longest = int(loads.max(-2).sum())
    return float(loads.mean(-2).sum() / longest) if longest else 1.0


def bound_of(costs: Int64Array, counts: Int64Array, per: Per) -> int:
    """Returns what the sum over barriers of the largest load is at least, however the items are dealt.

    For each cost: at least the mean over the ranks, and

    - with "step": the t largest items, for each t, are on t ranks, next to other items that are at least the smallest
      ones; or two of them share a rank.
    - with "micro_batch": the largest items cannot all be in one micro-batch, so that the largest item is in one, the
      largest of those that do not fit next to it in another one, and so on.

    Args:
        costs: int64[n, 2]: cost of each item.
        counts: int64[ranks, micro_batches]: items of each slot.
        per: Where ranks wait.
    """
    bound = 0
    for column in costs.T:
        ascending = np.sort(column)
        least = _bound_of_step(ascending, counts.sum(1)) if per == "step" else 0
        if per == "micro_batch":
            sizes = np.sort(counts.sum(0))[::-1]
            firsts = np.cumsum(sizes) - sizes
            least = int(ascending[::-1][firsts[sizes > 0]].sum())
        bound += max(least, -(-int(column.sum()) // len(counts)))
    return bound


def _bound_of_step(ascending: Int64Array, counts: Int64Array) -> int:
    """Returns what the largest load of a rank is at least; see `bound_of`.

    Args:
        ascending: int64[n]: one cost of each item.
        counts: int64[ranks]: items of each rank.
    """
    least, most = int(counts.min()), int(counts.max())
    if not least:
        return int(ascending[-1:].sum())
    smallest, largest = np.cumsum(ascending), np.cumsum(ascending[::-1])
    t = np.arange(1, len(counts) + 1)
    others = np.concatenate([[0], smallest])
    apart = -(-(largest[t - 1] + others[(least - 1) * t]) // t)
    shared = ascending[::-1][t - 1] + ascending[::-1][np.maximum(t - 2, 0)] + others[max(least - 2, 0)]
    shared[0] = np.iinfo(np.int64).max
    if most < 2:
        shared[:] = np.iinfo(np.int64).max
    return max(int(np.minimum(apart, shared).max()), int(others[most]))


# --- ranks ----------------------------------------------------------------------------------------------------------


def _scaled(costs: Int64Array, counts: Int64Array) -> Int64Array:
    """Returns costs without low bits, so that the load of no rank is above `_LOAD_BITS`."""
    most = int(costs.max(initial=0)) * int(counts.sum(1).max(initial=0))
    return costs >> max(0, most.bit_length() - _LOAD_BITS)


def _dealt_to_ranks(loads: Int64Array, counts: Int64Array, pairs: int) -> Int64Array:
    """Returns the rank of each item, such that the loads of ranks are about equal.

    They are dealt forth and back, the largest first. Then ranks with much exchange an item with others, in rounds: half
    of the ranks at most, each with other partners. A swap is made if it lessens the sum of the squares of what both
    have above a threshold between the mean load and the largest one. What was best of all rounds is returned.

    Args:
        loads: int64[n, 2]: cost of each item, scaled.
        counts: int64[ranks]: items of each rank.
        pairs: Pairs of ranks that are tried, about.
    """
    n, ranks, width = len(loads), len(counts), int(counts.max())
    padded = np.concatenate([loads, np.zeros((1, loads.shape[1]), np.int64)])
    items = np.full((ranks, width), n)  # the number n is an empty place
    columns, owners = np.nonzero(counts > np.arange(width)[:, None])
    back = np.flatnonzero(columns % 2)
    owners[back] = owners[back[np.lexsort((-owners[back], columns[back]))]]
    items[owners, columns] = np.argsort(-loads.sum(1), kind="stable")
    if ranks > 1:
        items = _swapped(padded, items, bool((counts == width).all()), pairs)
    dealt = np.empty(n + 1, np.int64)
    dealt[items] = np.arange(ranks)[:, None]
    return dealt[:n]


def _swapped(padded: Int64Array, items: Int64Array, is_full: bool, left: int) -> Int64Array:
    """Returns the items of each rank after swaps; see `_dealt_to_ranks`.

    Args:
        padded: int64[n + 1, 2]: cost of each item, and of none.
        items: int64[ranks, width]: items of each rank; n is an empty place. Changed.
        is_full: Whether no place is empty.
        left: Pairs of ranks that are still to be tried.
    """
    ranks, width = items.shape
    empty = len(padded) - 1
    totals = padded[items].sum(1)
    mean = -(-totals.sum(0) // ranks)
    enough = int(np.maximum(mean, padded.max(0)).sum())
    enough += enough // _NEAR_ENOUGH
    best, best_items = -1, items
    number = idle = 0
    while True:
        top = totals.max(0)
        longest = int(top.sum())
        if best < 0 or longest < best:
            best, best_items = longest, items.copy()
        if left <= 0 or idle == _IDLE_ROUNDS or best <= enough:
            return best_items
        # A little more of one cost is fine for a rank if it lessens the other, so that both excesses count for each.
        # Where no swap was found, ranks with less above the mean take part.
        excess = ((top - mean).sum() // 2 + (top - mean)) // 2
        threshold = mean + excess * max(0, _THRESHOLD_EIGHTHS - idle // 4) // 8
        above = np.maximum(totals - threshold, 0)
        kind = number % 3
        order = np.argsort(-(totals[:, kind] if kind < 2 else above.sum(1)), kind="stable")
        loaded = max(1, min(ranks // 2, int((above.sum(1) > 0).sum())))
        partners = max(1, min(_LEAST_PAIRS_OF_ROUND, ranks - loaded) // loaded)
        pairs = loaded * partners
        others = order[loaded:][::-1]
        one, other = order[:loaded], np.roll(others, -(number // 3 * pairs % len(others)))[:pairs]
        own = theirs = np.arange(width)
        if width > _WINDOW:
            own = (number * _WINDOW + np.arange(_WINDOW)) % width
            theirs = (own + number // 3 * _WINDOW) % width
        own_items, their_items = items[one[:, None], own], items[other[:, None], theirs].reshape(loaded, -1)
        given = padded[own_items][:, :, None] - padded[their_items][:, None]  # int64[loaded, own, partners x theirs, 2]
        left_over = np.maximum((totals[one] - threshold)[:, None, None] - given, 0)
        of_others = np.repeat((totals[other] - threshold).reshape(loaded, partners, -1), len(theirs), axis=1)
        added = np.maximum(of_others[:, None] + given, 0)
        squares = (left_over * left_over + added * added).sum(-1)
        before = (above**2).sum(1)
        squares -= np.repeat(before[other].reshape(loaded, partners), len(theirs), axis=1)[:, None]
        if not is_full:
            never = (own_items == empty)[:, :, None] | (their_items == empty)[:, None]
            squares[never] = np.iinfo(np.int64).max
        squares = squares.reshape(loaded, -1)
        swap = squares.argmin(1)
        better = np.flatnonzero(squares[np.arange(loaded), swap] < before[one])
        row, column = np.divmod(swap[better], their_items.shape[1])
        moved = given[better, row, column]
        partner = other[better * partners + column // len(theirs)]
        items[one[better], own[row]] = their_items[better, column]
        items[partner, theirs[column % len(theirs)]] = own_items[better, row]
        totals[one[better]] -= moved
        totals[partner] += moved
        idle = 0 if len(better) else idle + 1
        left -= pairs + ranks // 16
        number += 1


def _exchange_equals(costs: Int64Array, ranks: Int64Array, homes: Int64Array, world_size: int) -> Int64Array:
    """Returns whose place each item takes: as many items as possible are at home, and only equal ones change places.

    Args:
        costs: int64[n, 2]: cost of each item.
        ranks: int64[n]: rank that each item was dealt to.
        homes: int64[n]: rank that it should go to.
        world_size: Number of ranks.

    Returns:
        int64[n]: a permutation.
    """
    places = np.arange(len(costs))
    order = np.lexsort(costs.T)
    differs = (costs[order[1:]] != costs[order[:-1]]).any(1)
    if differs.all():
        return places
    classes = np.empty(len(costs), np.int64)
    classes[order] = np.concatenate([[0], np.cumsum(differs)])
    offered, wanted = classes * world_size + ranks, classes * world_size + homes
    by_offer, by_want = np.argsort(offered, kind="stable"), np.argsort(wanted, kind="stable")
    offered, wanted = offered[by_offer], wanted[by_want]
    # The k-th item that wants a rank gets the k-th place of its class there, if there is one.
    nth = np.arange(len(wanted)) - np.searchsorted(wanted, wanted)
    place = np.searchsorted(offered, wanted) + nth
    fits = place < np.searchsorted(offered, wanted, side="right")
    places[by_want[fits]] = by_offer[place[fits]]
    is_free = np.ones(len(costs), bool)
    is_free[place[fits]] = False
    rest = by_want[~fits]
    rest = rest[np.lexsort((rest, classes[rest]))]
    places[rest] = by_offer[is_free]  # both are ordered by class, and each class has as many of both
    return places


# --- micro-batches --------------------------------------------------------------------------------------------------


def _outside_in(number: int) -> Int64Array:
    """Returns the numbers of micro-batches from both ends to the middle: 0, last, 1, last but one, ..."""
    order = np.empty(number, np.int64)
    order[::2] = np.arange((number + 1) // 2)
    order[1::2] = number - 1 - np.arange(number // 2)
    return order


def _slots_of_ranks(totals: Int64Array, rank: Int64Array, counts: Int64Array, order: Order) -> Int64Array:
    """Returns the slot of each item, whose rank is known.

    Args:
        totals: int64[n]: cost of each item.
        rank: int64[n]: rank of each item.
        counts: int64[ranks, micro_batches]: items of each slot.
        order: "as_dealt" leaves items in order. "pipeline" deals those of a rank to its micro-batches forth and back,
            the largest first, and moves the smallest micro-batches to both ends.
    """
    ranks, micro_batches = counts.shape
    slots = np.empty(len(rank), np.int64)
    cells = np.repeat(np.arange(counts.size), counts.ravel())
    if order == "as_dealt":
        slots[np.argsort(rank, kind="stable")] = cells
        return slots
    starts = np.cumsum(counts.ravel()) - counts.ravel()
    row = np.arange(len(cells)) - starts[cells]
    forth = np.where(row % 2, micro_batches - 1 - cells % micro_batches, cells % micro_batches)
    cells = cells[np.lexsort((forth, row, cells // micro_batches))]
    slots[np.lexsort((-totals, rank))] = cells
    sums = np.zeros(counts.size, np.int64)
    np.add.at(sums, slots, totals)
    # Only micro-batches of equally many items change places.
    of_rank = np.repeat(np.arange(ranks), micro_batches)
    depth = np.empty(micro_batches, np.int64)
    depth[_outside_in(micro_batches)] = np.arange(micro_batches)
    new = np.empty(counts.size, np.int64)
    new[np.lexsort((sums, counts.ravel(), of_rank))] = np.lexsort((np.tile(depth, ranks), counts.ravel(), of_rank))
    return new[slots]


def _dealt_per_micro_batch(loads: Int64Array, counts: Int64Array, order: Order) -> Int64Array:
    """Returns the slot of each item, such that the ranks have about equal loads in each micro-batch.

    Args:
        loads: int64[n, 2]: cost of each item, scaled.
        counts: int64[ranks, micro_batches]: items of each slot.
        order: "as_dealt" begins with the largest micro-batches, "pipeline" has them in the middle.
    """
    micro_batches = counts.shape[1]
    numbers = np.arange(micro_batches) if order == "as_dealt" else _outside_in(micro_batches)[::-1]
    sizes = counts.sum(0)[numbers]
    slots = np.empty(len(loads), np.int64)
    parts = np.split(_sorted_for_micro_batches(loads, sizes), np.cumsum(sizes)[:-1])
    # What was chosen may not descend: the largest parts go first, among those of one size.
    totals = np.array([int(loads[part].sum()) for part in parts])
    by_total = np.lexsort((-totals, -sizes))
    pairs = (_PAIRS_PER_RANK * len(counts) + _LEAST_PAIRS) // micro_batches + _PAIRS_PER_RANK * len(counts) // 2
    so_far = np.zeros(len(counts), np.int64)
    for number, which in zip(numbers[np.argsort(-sizes, kind="stable")], by_total, strict=True):
        part, of_ranks = parts[which], counts[:, number]
        if len(part):
            ranks = _dealt_to_ranks(loads[part], of_ranks, pairs)
            # Which rank has which load changes nothing here: one that had little so far gets more, of as many items.
            own = np.zeros(len(counts), np.int64)
            np.add.at(own, ranks, loads[part].sum(1))
            renamed = np.empty(len(counts), np.int64)
            renamed[np.lexsort((-own, of_ranks))] = np.lexsort((so_far, of_ranks))
            ranks = renamed[ranks]
            so_far[renamed] += own
            slots[part] = ranks * micro_batches + number
    return slots


def _sorted_for_micro_batches(loads: Int64Array, sizes: Int64Array) -> Int64Array:
    """Returns items in an order whose consecutive parts have similar costs.

    Items can be sorted by one cost, by the sum of both, or by the larger of both with one of several weights: a part
    then has the items that are large in either. Of all ways to sort the items of the first parts by one of these, and
    the others by the same or another one, that with the least sum of the largest costs of the parts is taken.

    Args:
        loads: int64[n, 2]: cost of each item, scaled.
        sizes: int64[parts]: number of items of each part.
    """
    starts = (np.cumsum(sizes) - sizes)[sizes > 0]
    vision, language = loads.T
    most_vision, most_language = int(vision.max()), int(language.max())
    keys = [language, vision, vision + language]
    if most_vision and most_language:
        keys += [np.maximum(vision * most_language * to, language * most_vision * of) for to, of in _WEIGHTS]
    orders = [np.argsort(-key, kind="stable") for key in keys]
    largest = [np.maximum.reduceat(loads[order], starts).sum(1) for order in orders]
    longest = [int(one.sum()) for one in largest]
    best, found = min(longest), orders[longest.index(min(longest))]
    for split in sorted({len(starts) * quarters // 4 for quarters in (1, 2, 3)} - {0}):
        stop = starts[split]
        rest_starts = starts[split:] - stop
        for order, of_parts in zip(orders, largest, strict=True):
            first = int(of_parts[:split].sum())
            is_left = np.ones(len(loads), bool)
            is_left[order[:stop]] = False
            for other in orders:
                rest = other[is_left[other]]
                longest_of_both = first + int(np.maximum.reduceat(loads[rest], rest_starts).sum())
                if longest_of_both < best:
                    best, found = longest_of_both, np.concatenate([order[:stop], rest])
    return found
