"""Shows what loaders do in the terminal while a training runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.integrations import LoaderReferences, Loaders
from energon_dali.loader.processes.fork_safety import without_forks
from energon_dali.loader.statistics import LoaderStatistics

_WINDOW_SECONDS = 10.0
"""Time that the rates of the panel are means of."""
_BAR_WIDTH = 24
_MANY_STAGES = 12
_CONTAINERS = ("rank", "wait for decode")
"""Stages whose time is that of others, or a wait."""


@explain_call
class LoaderPanel:
    """A live panel with the statistics of loaders, for a `with` block around a training.

    It shows how long the trainer waits, batches per second, how full the queue is, how many processes work on each
    stage, decode routes, bytes read, shares of blends, and samples that were skipped or failed. Rates are those of the
    last ten seconds. If the console is neither a terminal nor a notebook, such as the log of a cluster, it prints a
    line now and then instead. A thread of its own draws it, twice per second by default. It does not keep loaders
    alive.

    Args:
        loaders: A loader, which is called "train"; or a dict of loaders by name.
        refresh_seconds: Time between two drawings in a terminal.
        line_seconds: Time between two lines if the console is no terminal.
        console: Where to draw, a `rich.console.Console`; None is the standard error, where rich and tqdm write too.

    Raises:
        ConfigError: An argument is invalid.
    """

    def __init__(
        self,
        loaders: Loaders,
        *,
        refresh_seconds: float = 0.5,
        line_seconds: float = 30.0,
        console: Console | None = None,
    ) -> None:
        for name, value in (("refresh_seconds", refresh_seconds), ("line_seconds", line_seconds)):
            if value <= 0:
                raise ConfigError(f"{name}={value} is invalid: it must be greater than 0.")
        self._console = console or Console(stderr=True)
        self._histories = {name: _History() for name, _ in LoaderReferences(loaders)}
        self._loaders = LoaderReferences(loaders)
        self._refresh_seconds = refresh_seconds
        self._line_seconds = line_seconds
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def start(self) -> None:
        """Begins to draw; does nothing if it has begun."""
        if self._thread is not None:
            return
        draw, seconds = self._print_lines, self._line_seconds
        if self._console.is_terminal or self._console.is_jupyter:
            self._live = Live(console=self._console, get_renderable=self.render, auto_refresh=False)
            self._live.start(refresh=True)
            draw, seconds = self._live.refresh, self._refresh_seconds
        self._end.clear()
        self._thread = threading.Thread(target=self._run, args=(draw, seconds), name="energon-dali-panel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Draws the last state, and ends; may be called again."""
        live, self._live = self._live, None
        thread, self._thread = self._thread, None
        if thread is not None:
            self._end.set()
            thread.join()
        if live is not None:
            live.stop()

    def __enter__(self) -> LoaderPanel:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> list[tuple[str, int, LoaderStatistics, LoaderStatistics]]:
        """Returns (name, rank, statistics since the start, statistics of the last seconds) of each loader."""
        rows = []
        for name, loader in self._loaders:
            total = loader.stats()
            rows.append((name, loader.worker_config.rank, total, self._histories[name].recent(total)))
        return rows

    def render(self) -> RenderableType:
        """Returns the panel as it is now, for rich."""
        panels = [
            Panel(_body(total, recent), title=f"[bold]{name}[/] · rank {rank}", title_align="left")
            for name, rank, total, recent in self._read()
        ]
        return Group(*panels)

    def lines(self) -> list[str]:
        """Returns one line per loader: what is printed where there is no terminal."""
        return [_line(name, rank, total, recent) for name, rank, total, recent in self._read()]

    def _run(self, draw: Callable[[], None], seconds: float) -> None:
        """Thread body."""
        ended = False
        while not ended:
            ended = self._end.wait(seconds)
            with without_forks():  # drawing takes the locks of the console and of its file
                draw()

    def _print_lines(self) -> None:
        for line in self.lines():
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _History:
    """Snapshots of the last seconds."""

    def __init__(self) -> None:
        self._snapshots: deque[tuple[float, LoaderStatistics]] = deque()

    def recent(self, statistics: LoaderStatistics) -> LoaderStatistics:
        """Adds a snapshot; returns what happened since the oldest that is kept, or since the start without one."""
        now = time.monotonic()
        kept = self._snapshots
        while len(kept) > 1 and kept[1][0] <= now - _WINDOW_SECONDS:
            kept.popleft()
        recent = statistics.since(kept[0][1]) if kept else statistics
        kept.append((now, replace(statistics, failures=[])))
        return recent


def _line(name: str, rank: int, total: LoaderStatistics, recent: LoaderStatistics) -> str:
    parts = [
        f"{total.batches:,} batches in {duration(total.elapsed_seconds)}",
        f"{recent.batches_per_second:.1f}/s",
        f"trainer blocked {recent.blocked_share:.0%} (in all {total.blocked_share:.0%})",
    ]
    if recent.queue_occupancy is not None:
        parts.append(f"queue {recent.queue_occupancy:.0%} full")
    stages = [row for row in recent.stage_seconds.items() if row[0] not in _CONTAINERS]
    busiest = max(stages, key=lambda row: row[1], default=None)
    if busiest is not None and recent.elapsed_seconds > 0:
        parts.append(f"most time in {busiest[0]} ({busiest[1] / recent.elapsed_seconds:.1f} processes)")
    parts += [f"{count:,} {what}" for what, count in _dropped(total)]
    return f"{name}, rank {rank}: {', '.join(parts)}"


def _dropped(statistics: LoaderStatistics) -> list[tuple[str, int]]:
    counts = statistics.counts
    return [(what, counts[f"samples.{what}"]) for what in ("skipped", "failed") if counts.get(f"samples.{what}")]


def _body(total: LoaderStatistics, recent: LoaderStatistics) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="ellipsis", no_wrap=True)
    blocked = recent.blocked_share
    color = "green" if blocked < 0.05 else "yellow" if blocked < 0.25 else "red"
    table.add_row(
        "trainer blocked",
        Text(f"{blocked:.1%}", style=f"bold {color}"),
        _bar(blocked, color),
        f"in all {total.blocked_share:.1%}, first batch after {_seconds(total.first_batch_seconds)}",
    )
    table.add_row(
        "batches per second",
        f"{recent.batches_per_second:.1f}",
        "",
        f"{total.batches:,} in {duration(total.elapsed_seconds)}",
    )
    if recent.queue_occupancy is not None:
        table.add_row("queue full", f"{recent.queue_occupancy:.0%}", _bar(recent.queue_occupancy, "cyan"), "")
    read = recent.counts.get("bytes.read", 0)
    if read and recent.elapsed_seconds > 0:
        samples = recent.counts.get("samples.read", 0) / recent.elapsed_seconds
        table.add_row("read", f"{read / 1e6 / recent.elapsed_seconds:.1f} MB/s", "", f"{samples:,.0f} samples/s")
    _add_stages(table, total, recent)
    routes = ", ".join(f"{route} {count:,}" for route, count in sorted(total.routes.items()))
    if routes:
        table.add_row("decoded by", "", "", routes)
    for name, row in total.blend.items():
        wanted = recent.planned_blend.get(name)
        note = "" if wanted is None else f", {wanted['wanted_share']:.1%} wanted now"
        drawn = f"{row['samples']:,} samples{note}"
        table.add_row(f"blend {name}", f"{row['share']:.1%}", _bar(row["share"], "blue"), drawn)
    retries = sum(total.retries.values())
    if retries:
        table.add_row("requests repeated", f"{retries:,}", "", ", ".join(total.retries))
    for what, count in _dropped(total):
        style = "red" if what == "failed" else ""
        table.add_row(f"samples {what}", Text(f"{count:,}", style=style), "", _stages(total, what))
    if total.failures:
        last = total.failures[-1]
        # Text, not markup: keys and reasons come from the data.
        table.add_row("last failure", "", "", Text(f"{last['shard']}/{last['key']}: {last['reason']}".split("\n")[0]))
    return table


def _add_stages(table: Table, total: LoaderStatistics, recent: LoaderStatistics) -> None:
    """Adds the stages on which the most time was spent, most first."""
    rows = sorted(total.stage_seconds.items(), key=lambda row: -row[1])[:_MANY_STAGES]
    busy = {name: recent.stage_seconds.get(name, 0.0) / (recent.elapsed_seconds or 1.0) for name, _ in rows}
    most = max(1.0, *busy.values()) if busy else 1.0
    for name, seconds in rows:
        table.add_row(f"in {name}", f"{busy[name]:.2f}", _bar(busy[name] / most, "magenta"), _seconds(seconds))


def _stages(statistics: LoaderStatistics, what: str) -> str:
    counts = {name: count for name, count in statistics.counts.items() if name.startswith(f"{what}.")}
    return ", ".join(f"{name.partition('.')[2]} {count:,}" for name, count in sorted(counts.items()))


def _bar(share: float, color: str) -> Any:
    return ProgressBar(
        total=1.0, completed=min(1.0, share), width=_BAR_WIDTH, complete_style=color, finished_style=color
    )


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds) if seconds >= 100 else f"{seconds:.1f} s"


def duration(seconds: float) -> str:
    """Returns a time as people read it, such as "42 s", "3 min 05 s" or "2 h 10 min"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
