"""How `energon-dali plan` shows what ranks have to compute: as a table with bars, as an image, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from energon_dali.diagnosis.planned_loads import PlannedLoads
from energon_dali.errors import ConfigError
from energon_dali.plan.balance import PER, Per

_SHOWN_STEPS = 10
"""Most steps that are shown rank by rank."""
_SHOWN_RANKS = 16
"""Most ranks of a step that are shown: those with the most, and with the least to compute."""
_SHOWN_MICRO_BATCHES = 8
_BAR = 32
"""Width of the bar of the rank that has the most, in characters."""
_WAITS: dict[Per, str] = {"step": "at each step", "micro_batch": "at each micro-batch"}
_SUFFIXES = (".png", ".svg", ".pdf")


def describe_loads(found: Sequence[PlannedLoads], per: Per, ranks: Sequence[int]) -> Iterator[str]:
    """Yields lines: for one policy a table per step, and for several one line each.

    Args:
        found: The steps, each by all policies.
        per: Where the ranks of the job wait.
        ranks: Ranks to show; () shows those with the most and the least to compute.
    """
    if not found:
        yield "The data ends before."
        return
    policies = list(dict.fromkeys(one.policy for one in found))
    if len(policies) > 1:
        yield from _compared(found, policies)
        return
    for number, one in enumerate(found):
        if number == _SHOWN_STEPS:
            yield f"... {len(found) - number:,} more steps"
        if number < _SHOWN_STEPS:
            yield from _table(one, per, ranks)
    waiting = float(np.mean([one.waiting_share(per) for one in found]))
    yield f"Over {len(found):,} steps, ranks wait {waiting:.1%} of their time {_WAITS[per]}."


def _table(one: PlannedLoads, per: Per, ranks: Sequence[int]) -> Iterator[str]:
    micro_batches = one.sums.shape[1]
    networks = one.sums.sum(1)
    totals = networks.sum(1)
    mean, means = max(1e-9, float(totals.mean())), np.maximum(networks.mean(0), 1e-9)
    shares = f"{one.waiting_share(per):.1%} of their time {_WAITS[per]} (at best {_at_best(one, per):.1%})"
    yield f"Step {one.step:,}: ranks wait {shares}."
    yield "   rank  total  vision  language  micro-batches"
    order = np.argsort(-totals, kind="stable")
    shown = [rank for rank in order.tolist() if rank in ranks] if ranks else order.tolist()
    left_out = len(shown) - _SHOWN_RANKS
    if left_out > 0:
        shown = [*shown[: _SHOWN_RANKS // 2], -1, *shown[-_SHOWN_RANKS // 2 :]]
    for rank in shown:
        if rank < 0:
            yield f"    ... {left_out:,} ranks between"
            continue
        parts = one.sums[rank].sum(1) / (mean / micro_batches)
        texts = [f"{part:.2f}" for part in parts[:_SHOWN_MICRO_BATCHES]] + ["..."] * (
            micro_batches > _SHOWN_MICRO_BATCHES
        )
        yield (
            f"{rank:7,}  {totals[rank] / mean:5.2f}  {networks[rank, 0] / means[0]:6.2f}  "
            f"{networks[rank, 1] / means[1]:8.2f}  {' '.join(texts)}  {_bar(networks[rank], int(totals.max()))}"
        )


def _at_best(one: PlannedLoads, per: Per) -> float:
    """Returns the least share of waiting that a dealing might have."""
    return 1 - float(one.sums.sum()) / len(one.sums) / max(1, one.bounds[per]) if one.sums.any() else 0.0


def _bar(networks: Any, most: int) -> str:
    """Returns a bar whose first part is the vision encoder."""
    vision, total = (round(_BAR * int(value) / max(1, most)) for value in (networks[0], networks.sum()))
    return "▒" * vision + "█" * (total - vision)


def _compared(found: Sequence[PlannedLoads], policies: Sequence[str]) -> Iterator[str]:
    steps = len(found) // len(policies)
    world_size, micro_batches, _ = found[0].sums.shape
    yield f"{steps:,} steps, {world_size:,} ranks x {micro_batches:,} micro-batches: waiting, and time of a step"
    yield " " * 26 + "".join(f"  {'waits ' + _WAITS[per]:30}" for per in PER)
    first: dict[Per, float] = {}
    for policy in policies:
        own = [one for one in found if one.policy == policy]
        cells = []
        for per in PER:
            waiting = float(np.mean([one.waiting_share(per) for one in own]))
            longest = float(np.mean([one.longest(per) for one in own]))
            first.setdefault(per, longest)
            ratio = longest / first[per] if first[per] else 1.0
            cells.append(f"  {waiting:6.1%}, time {ratio:4.0%} {_bar_of(waiting):14}")
        yield f"{policy:26}" + "".join(cells)
    yield "  at best                 " + "".join(
        f"  {float(np.mean([_at_best(one, per) for one in found])):6.1%}{'':24}" for per in PER
    )


def _bar_of(share: float) -> str:
    return "░" * round(14 * share)


def loads_as_json(found: Sequence[PlannedLoads], per: Per) -> dict[str, Any]:
    """Returns loads as plain values."""
    steps = [
        {
            "step": one.step,
            "policy": one.policy,
            "waiting_share": {per: round(one.waiting_share(per), 6) for per in PER},
            "longest": {per: one.longest(per) for per in PER},
            "bound": dict(one.bounds),
            "costs": one.sums.tolist(),
        }
        for one in found
    ]
    return {"per": per, "axes": ["rank", "micro_batch", ["vision", "language"]], "steps": steps}


def plot_loads(found: Sequence[PlannedLoads], per: Per, path: Path) -> None:
    """Draws what each rank computes in the first step: a panel per policy.

    Args:
        found: The steps, each by all policies.
        per: Where the ranks of the job wait.
        path: File to write.

    Raises:
        ConfigError: The suffix is unknown, matplotlib is missing, there is no step, or the file cannot be written.
    """
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"--plot {path}: give a file that ends in {', '.join(_SUFFIXES)}.")
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: run `pip install matplotlib`, or leave --plot out.") from error
    panels = [one for one in found if one.step == found[0].step] if found else []
    if not panels:
        raise ConfigError("--plot: there is no such step to draw.")
    figure = Figure(figsize=(8, 2.1 * len(panels) + 0.6), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, one in zip(axes, panels, strict=True):
        networks = one.sums.sum(1)
        mean = max(1e-9, float(networks.sum() / len(networks)))
        places = np.arange(len(networks))
        axis.bar(places, networks[:, 0] / mean, width=1.0, color="#d08a2f", label="vision encoder")
        axis.bar(
            places,
            networks[:, 1] / mean,
            width=1.0,
            bottom=networks[:, 0] / mean,
            color="#2a7f62",
            label="language model",
        )
        axis.axhline(1.0, color="#222222", linewidth=0.8)
        title = f"Step {one.step:,}, {one.policy}: ranks wait {one.waiting_share(per):.1%} {_WAITS[per]}"
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_ylabel("cost / mean", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, frameon=False, ncols=2, loc="outside lower right")
    axes[-1].set_xlabel("rank", fontsize=8)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror or error}.") from error
