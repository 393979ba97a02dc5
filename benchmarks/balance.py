"""How long ranks wait for each other, by simulation: `python -m benchmarks.balance`.

Steps of 4 packs per rank are drawn from a mixture of texts, images, documents and videos, and dealt by several
policies. The balance of a step is the mean over the maximum load of the ranks, vision encoder and language model
together (`balance_of`). Writes benchmarks/results/balance.json and docs/images/balance.png.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.balance_mixture import draw_packs, sum_over_packs
from benchmarks.machine import commit, describe_machine, describe_versions
from benchmarks.plot import INK, OTHERS, OURS
from energon_dali.plan.balance import PER, Balance, Per, balance_of, bound_of, deal_balanced, loads_of
from energon_dali.plan.costs import TransformerCost
from energon_dali.plan.rng import Int64Array

ROOT = Path(__file__).resolve().parent.parent
RANKS = (64, 256, 1024)
MICRO_BATCHES = 4
MODELS = {
    "ViT of 1280 x 32": TransformerCost(4096, 32, vision_hidden_size=1280, vision_layers=32),
    "ViT of 3200 x 45": TransformerCost(4096, 32, vision_hidden_size=3200, vision_layers=45),
    "language model alone": TransformerCost(4096, 32),
}
"""A language model of 8 billion parameters, with a small, a large, and no vision encoder."""

Policy = Callable[[Int64Array, int, Per], Int64Array]


def deal_at_random(costs: Int64Array, ranks: int, per: Per) -> Int64Array:
    """Returns the slots of packs that are dealt as they come: they are in a random order."""
    return np.arange(len(costs))


def _longest_first(keys: Int64Array, ranks: int, per: Per) -> Int64Array:
    slots = np.empty(len(keys), np.int64)
    order = np.argsort(-keys, kind="stable")
    if per == "micro_batch":
        slots[order] = np.arange(len(keys)) % ranks * MICRO_BATCHES + np.arange(len(keys)) // ranks
        return slots
    loads = [(0, rank, 0) for rank in range(ranks)]
    for item in order.tolist():
        load, rank, count = heapq.heappop(loads)
        slots[item] = rank * MICRO_BATCHES + count
        if count + 1 < MICRO_BATCHES:
            heapq.heappush(loads, (load + int(keys[item]), rank, count + 1))
    return slots


def longest_first_on_the_sum(costs: Int64Array, ranks: int, per: Per) -> Int64Array:
    """Returns the slots of packs that go to the rank with the least cost and room; per micro-batch, sorted by it."""
    return _longest_first(costs.sum(1), ranks, per)


def longest_first_on_vision(costs: Int64Array, ranks: int, per: Per) -> Int64Array:
    """Returns the same by the cost of the vision encoder alone."""
    return _longest_first(costs[:, 0], ranks, per)


def ours(costs: Int64Array, ranks: int, per: Per) -> Int64Array:
    """Returns the slots of `deal_balanced`."""
    homes = np.arange(len(costs)) % ranks
    balance = Balance(MODELS["ViT of 1280 x 32"], per=per)  # the costs are given
    return deal_balanced(costs, np.ones((ranks, MICRO_BATCHES), np.int64), homes, balance)


POLICIES: dict[str, Policy] = {
    "dealt at random": deal_at_random,
    "longest first on the sum": longest_first_on_the_sum,
    "longest first on vision": longest_first_on_vision,
    "energon_dali": ours,
}


def measure(steps: int) -> list[dict[str, Any]]:
    """Returns one row per model, number of ranks, barrier and policy.

    Args:
        steps: Steps of each.
    """
    rows = []
    for model, cost in MODELS.items():
        for ranks in RANKS:
            drawn = [draw_packs(np.random.default_rng(step), ranks * MICRO_BATCHES) for step in range(steps)]
            costs = [sum_over_packs(cost.of(measures), packs, ranks * MICRO_BATCHES) for measures, packs in drawn]
            for per in PER:
                rows += [{"model": model, "ranks": ranks, **row} for row in _compare(costs, ranks, per)]
    return rows


def _compare(steps: list[Int64Array], ranks: int, per: Per) -> list[dict[str, Any]]:
    shape = (ranks, MICRO_BATCHES)
    bounds = [bound_of(costs, np.ones(shape, np.int64), per) for costs in steps]
    rows = []
    for name, policy in POLICIES.items():
        balances, of_bounds, milliseconds = [], [], []
        for costs, bound in zip(steps, bounds, strict=True):
            start = time.process_time()
            slots = policy(costs, ranks, per)
            milliseconds.append(1000 * (time.process_time() - start))
            loads = loads_of(costs, slots, shape, per)
            balances.append(balance_of(loads))
            of_bounds.append(bound / int(loads.max(1).sum()))
        rows.append(
            {
                "per": per,
                "policy": name,
                "balance": round(statistics.fmean(balances), 4),
                "lowest_balance": round(min(balances), 4),
                "of_bound": round(statistics.fmean(of_bounds), 4),
                "lowest_of_bound": round(min(of_bounds), 4),
                "milliseconds": round(statistics.median(milliseconds), 2),
            }
        )
    return rows


def plot(document: dict[str, Any], path: Path) -> None:
    """Draws the balance of each policy over the number of ranks.

    Args:
        document: What `main` writes.
        path: File to write.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(10, 6), sharey=True, layout="constrained")
    panels = [(model, per) for per in PER for model in MODELS]
    markers = dict(zip(POLICIES, "o^vs", strict=True))
    for axis, (model, per) in zip(axes.flat, panels, strict=True):
        for policy in POLICIES:
            rows = [
                one for one in document["rows"] if (one["model"], one["per"], one["policy"]) == (model, per, policy)
            ]
            color = OURS if policy == "energon_dali" else OTHERS
            values = [row["balance"] for row in rows]
            axis.plot(range(len(rows)), values, label=policy, color=color, marker=markers[policy], markersize=5)
        axis.set_xticks(range(len(RANKS)), [f"{ranks:,}" for ranks in RANKS])
        axis.set_ylim(0, 1)
        title = "ranks wait once per step" if per == "step" else "ranks wait at each micro-batch"
        axis.set_title(f"{title}\n{model}", fontsize=8, loc="left", color=INK)
        axis.set_xlabel(f"ranks, {MICRO_BATCHES} packs each", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("mean over max load (1: no rank waits)", fontsize=8)
    axes[0, 0].legend(fontsize=7, frameon=False, loc="lower left")
    figure.supxlabel(f"Simulated; {document['command']}, commit {document['commit']}.", fontsize=7, color=INK)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Simulates, prints the rows, and writes them and the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps of each size (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/balance.json")
    parser.add_argument("--png", type=Path, default=ROOT / "docs/images/balance.png")
    options = parser.parse_args()
    rows = measure(options.steps)
    document = {
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": commit(ROOT),
        "command": f"python -m benchmarks.balance --steps {options.steps}",
        "rows": rows,
    }
    for row in rows:
        print(
            f"{row['model']}, {row['ranks']:5,} ranks, per {row['per']:11}, {row['policy']:24}: balance "
            f"{row['balance']:.3f} (lowest {row['lowest_balance']:.3f}), {row['of_bound']:.3f} of the bound, "
            f"{row['milliseconds']:6.2f} ms"
        )
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    plot(document, options.png)


if __name__ == "__main__":
    main()
