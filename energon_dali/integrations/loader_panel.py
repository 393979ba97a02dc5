"""Shows what loaders do in the terminal while a training runs."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.integrations import LoaderReferences, Loaders
from energon_dali.loader.advice import diagnose
from energon_dali.loader.host_memory import memory_left
from energon_dali.loader.processes.fork_safety import without_forks
from energon_dali.loader.statistics import LoaderStatistics

_WINDOW_SECONDS = 10.0
"""Time that the rates of the panel are means of."""
_SHORT_WAIT_SECONDS = 1.0
"""Waits below this are not worth a word while batches arrive."""
_SHORT_STAGE_SECONDS = 0.05
"""Times below this are shown as 0.0 s, so they are left out."""
_MANY_STAGES = 12
_WAITS_SHARE = 0.25
"""Share of the time that a trainer waits from which on the panel says what to change."""
_MOST_TEXT = 240
_NOTEBOOK_WIDTH = 100
_NOTEBOOK_HTML = '<pre style="line-height: 1.2; white-space: pre">{code}</pre>'
_WAITS = "wait for "
"""How the names of stages begin in which a process waits for another."""


@explain_call
class LoaderPanel:
    """A live panel with the statistics of loaders, for a `with` block around a training.

    It shows how long the trainer waits and for what, batches per second, how many processes are in each stage and
    whether they compute, decode routes, bytes read, shares of blends, and samples that were skipped or failed. Rates
    are those of the last ten seconds. If the console is neither a terminal nor a notebook, such as the log of a
    cluster, it prints a line now and then instead. A thread of its own draws it, twice per second by default. It does
    not keep loaders alive.

    Args:
        loaders: A loader, which is called "train"; or a dict of loaders by name.
        refresh_seconds: Time between two drawings in a terminal.
        line_seconds: Time between two lines if the console is not a terminal.
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
        if self._console.is_jupyter:
            draw, seconds = _NotebookOutput(self.render).draw, self._refresh_seconds
            draw()
        elif self._console.is_terminal:
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

    def _read(self) -> list[tuple[str, int, LoaderStatistics, LoaderStatistics, str]]:
        """Returns (name, rank, statistics since the start, those of the last seconds, advice) of each loader."""
        rows = []
        for name, loader in self._loaders:
            total, config = loader.stats(), loader.worker_config
            recent = self._histories[name].recent(total)
            rows.append((name, config.rank, total, recent, _advice(recent, config.num_workers)))
        return rows

    def render(self) -> RenderableType:
        """Returns the panel as it is now, for rich."""
        panels = [
            Panel(
                _Body(total, recent, advice),
                title=Text.assemble((_printable(name), "bold"), f" · rank {rank}"),
                title_align="left",
            )
            for name, rank, total, recent, advice in self._read()
        ]
        return Group(*panels)

    def lines(self) -> list[str]:
        """Returns one line per loader: what is printed where there is no terminal."""
        return [
            _printable(". ".join(filter(None, [_line(name, rank, total, recent), advice])))
            for name, rank, total, recent, advice in self._read()
        ]

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


class _NotebookOutput:
    """The panel as an output of a notebook's cell, which is replaced each time. It needs no ipywidgets.

    Args:
        render: Returns the panel.
    """

    def __init__(self, render: Callable[[], RenderableType]) -> None:
        self._render = render
        self._handle: Any = None

    def draw(self) -> None:
        """Shows the panel as it is now."""
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        page = Console(file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_jupyter=False)
        page.print(self._render())
        output = HTML(page.export_html(inline_styles=True, code_format=_NOTEBOOK_HTML))
        if self._handle is None:
            self._handle = display(output, display_id=True)
        else:
            self._handle.update(output)


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
    parts = [f"{total.batches:,} batches in {duration(total.elapsed_seconds)}"]
    wait = _wait(total, recent)
    if wait:
        parts.insert(0, wait)
    if recent.batches:
        parts.append(f"{recent.batches_per_second:.1f}/s")
    if total.batches:
        parts.append(f"trainer blocked {recent.blocked_share:.0%} (in all {total.blocked_share:.0%})")
    stages = [row for row in recent.stage_seconds.items() if not row[0].startswith(_WAITS)]
    busiest = max(stages, key=lambda row: row[1], default=None)
    if busiest is not None and recent.elapsed_seconds > 0:
        parts.append(f"most time in {busiest[0]} ({busiest[1] / recent.elapsed_seconds:.1f} processes)")
    parts += [f"{count:,} {what}" for what, count in _dropped(total)]
    return f"{name}, rank {rank}: {', '.join(parts)}"


def _advice(recent: LoaderStatistics, num_workers: int) -> str:
    """Returns what limits a loader whose trainer waits, and what to change; "" for one whose trainer does not wait."""
    if not recent.batches or recent.blocked_share < _WAITS_SHARE:
        return ""
    found = diagnose(recent, num_workers=num_workers, memory=memory_left())
    return "" if found.cause in ("nothing", "trainer", "start") else str(found)


def _wait(total: LoaderStatistics, recent: LoaderStatistics) -> str:
    """Returns how long the trainer has been waiting, and for what; "" if that is not worth a word."""
    waiting = total.waiting_seconds
    if waiting < _SHORT_WAIT_SECONDS and (recent.batches or not waiting):
        return ""
    what = "a batch" if total.batches else "the first batch"
    return f"waiting {_seconds(waiting)} for {what}: {total.waiting_for}"


def _dropped(statistics: LoaderStatistics) -> list[tuple[str, int]]:
    counts = statistics.counts
    return [(what, counts[f"samples.{what}"]) for what in ("skipped", "failed") if counts.get(f"samples.{what}")]


class _Body:
    """What a panel shows of a loader, for the width that there is.

    Args:
        total: Statistics since the start.
        recent: Those of the last seconds.
        advice: What limits it, and what to change; "" for nothing.
    """

    def __init__(self, total: LoaderStatistics, recent: LoaderStatistics, advice: str) -> None:
        self._total = total
        self._recent = recent
        self._advice = advice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wait = _wait(self._total, self._recent)
        if wait:
            yield Text(_printable(wait), style="bold red")
        yield _table(self._total, self._recent, _bar_width(options.max_width))
        if self._advice:
            yield Text(self._advice, style="yellow")


def _bar_width(width: int) -> int:
    """Returns the width of the bars in a panel; 0 where there is no room for any."""
    return 24 if width >= 100 else 10 if width >= 70 else 0


def _table(total: LoaderStatistics, recent: LoaderStatistics, bar_width: int) -> RenderableType:
    rows = _Rows(bar_width)
    blocked = recent.blocked_share
    color = "green" if blocked < 0.05 else "yellow" if blocked < 0.25 else "red"
    rows.add(
        "trainer blocked",
        Text(f"{blocked:.1%}", style=f"bold {color}"),
        f"in all {total.blocked_share:.1%}, first batch after {_seconds(total.first_batch_seconds)}",
        share=blocked,
        color=color,
    )
    rows.add(
        "batches per second",
        f"{recent.batches_per_second:.1f}" if recent.batches else "-",
        f"{total.batches:,} in {duration(total.elapsed_seconds)}",
    )
    read = recent.counts.get("bytes.read", 0)
    if read and recent.elapsed_seconds > 0:
        samples = recent.counts.get("samples.read", 0) / recent.elapsed_seconds
        rows.add("read", f"{read / 1e6 / recent.elapsed_seconds:.1f} MB/s", f"{samples:,.0f} samples/s")
    _add_stages(rows, total, recent)
    routes = ", ".join(f"{route} {count:,}" for route, count in sorted(total.routes.items()))
    if routes:
        rows.add("decoded by", "", routes)
    for name, row in total.blend.items():
        wanted = recent.planned_blend.get(name)
        note = "" if wanted is None else f", {wanted['wanted_share']:.1%} wanted now"
        drawn = f"{row['samples']:,} samples{note}"
        rows.add(f"blend {name}", f"{row['share']:.1%}", drawn, share=row["share"], color="blue")
    retries = sum(total.retries.values())
    if retries:
        rows.add("requests repeated", f"{retries:,}", ", ".join(total.retries))
    for what, count in _dropped(total):
        style = "red" if what == "failed" else ""
        rows.add(f"samples {what}", Text(f"{count:,}", style=style), _stages(total, what))
    if total.failures:
        last = total.failures[-1]
        # Text, not markup: keys and reasons come from the data.
        rows.add("last failure", "", f"{last['shard']}/{last['key']}: {last['reason']}".split("\n")[0][:_MOST_TEXT])
    return rows.table


class _Rows:
    """Builds the table of a panel: names, numbers, bars if there is room for them, and notes, which wrap.

    Args:
        bar_width: 0 for no bars.
    """

    def __init__(self, bar_width: int) -> None:
        self._bar_width = bar_width
        self.table = Table.grid(padding=(0, 1))
        self.table.add_column(style="dim", overflow="fold", max_width=28)
        self.table.add_column(justify="right", no_wrap=True)
        if bar_width:
            self.table.add_column(no_wrap=True)
        self.table.add_column(style="dim", overflow="fold")

    def add(self, name: str, number: str | Text, note: str, *, share: float | None = None, color: str = "") -> None:
        """Adds a row, with a bar if it has a share of 0 to 1."""
        bar = "" if share is None else _bar(share, color, self._bar_width)
        # Text, not markup: names come from the data.
        self.table.add_row(Text(_printable(name)), number, *([bar] if self._bar_width else []), Text(_printable(note)))


def _add_stages(rows: _Rows, total: LoaderStatistics, recent: LoaderStatistics) -> None:
    """Adds the stages on which the most time was spent, most first."""
    shown = (row for row in total.stage_seconds.items() if row[1] >= _SHORT_STAGE_SECONDS)
    stages = sorted(shown, key=lambda row: -row[1])[:_MANY_STAGES]
    busy = {name: recent.stage_seconds.get(name, 0.0) / (recent.elapsed_seconds or 1.0) for name, _ in stages}
    most = max(1.0, *busy.values()) if busy else 1.0
    for name, seconds in stages:
        waits = name.startswith(_WAITS)
        label = f"waiting for {name.removeprefix(_WAITS)}" if waits else f"in {name}"
        note = _seconds(seconds)
        if not waits and name in total.cpu_seconds:  # a decoder's own threads are not measured
            note += f", computing {total.cpu_seconds[name] / seconds:.0%}"
        rows.add(label, f"{busy[name]:.2f}", note, share=busy[name] / most, color="magenta")
    if total.core_wait_seconds >= _SHORT_STAGE_SECONDS:
        waited = recent.core_wait_seconds / (recent.elapsed_seconds or 1.0)
        rows.add("waiting for a core", f"{waited:.2f}", _seconds(total.core_wait_seconds))


def _stages(statistics: LoaderStatistics, what: str) -> str:
    counts = {name: count for name, count in statistics.counts.items() if name.startswith(f"{what}.")}
    return ", ".join(f"{name.partition('.')[2]} {count:,}" for name, count in sorted(counts.items()))


def _bar(share: float, color: str, width: int) -> Any:
    return ProgressBar(total=1.0, completed=min(1.0, share), width=width, complete_style=color, finished_style=color)


def _printable(text: str) -> str:
    """Returns a text whose control characters cannot change the terminal: keys and reasons come from the data."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


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
