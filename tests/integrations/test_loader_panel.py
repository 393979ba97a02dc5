from __future__ import annotations

import html
import io
import re
import sys
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from energon_dali import ConfigError, LoaderPanel
from energon_dali.integrations import loader_panel
from energon_dali.integrations.loader_panel import duration
from energon_dali.loader.statistics import LoaderStatistics
from tests.integrations.observed import everything, full_loader, numbers_loader
from tests.running_time import wait_until


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=120, force_terminal=terminal, color_system=None), file


def drawn(panel: LoaderPanel) -> str:
    target, file = console()
    target.print(panel.render())
    return file.getvalue()


def test_the_panel_shows_what_the_statistics_say() -> None:
    train, val = full_loader(), numbers_loader(rank=1, world_size=2)
    text = drawn(LoaderPanel({"train": train, "val": val}))
    rows = {" ".join(line.strip("│ ").split()[:2]): line for line in text[: text.index("val")].splitlines()}
    assert "train · rank 0" in text
    assert "val · rank 1" in text
    assert "5.0%" in rows["trainer blocked"]  # 0.5 of the 10 s after the first batch
    assert "first batch after 2.5 s" in rows["trainer blocked"]
    assert "2.0" in rows["batches per"]  # 20 in these 10 s
    assert "80 samples/s" in rows["read 0.4"]
    assert "0.52" in rows["in encode_sample"]  # 6.5 of 12.5 s
    assert "6.5 s, computing 92%" in rows["in encode_sample"]
    assert "0.06" in rows["waiting for"]
    assert "dali-cpu 97, pil 900" in rows["decoded by"]
    assert "75.0%" in rows["blend /data/a"]
    assert "encode_sample 5, filter 2" in rows["samples skipped"]
    assert "a.tar/k1: [red]not an image[/]" in text  # text of the data is not markup
    assert "at all" not in text


def test_text_of_the_data_cannot_change_the_terminal() -> None:
    loader = numbers_loader()
    hostile = "\x1b[2Jgone\r\x07"
    failure = {"stage": hostile, "reason": f"ValueError: {hostile}", "shard": hostile, "key": hostile}
    statistics = replace(
        everything(),
        stage_seconds={hostile: 9.0},
        blend={hostile: {"samples": 1, "share": 1.0}},
        routes={hostile: 3},
        retries={hostile: 3},
        failures=[failure],
        waiting_seconds=9.0,
        waiting_for=f"the rank is in {hostile}",
    )
    loader.stats = lambda: statistics
    text = drawn(LoaderPanel({hostile: loader})) + "".join(LoaderPanel({hostile: loader}).lines())
    assert "[2Jgone" in text
    assert not set("\x1b\r\x07") & set(text)


def test_stages_that_took_next_to_nothing_are_left_out() -> None:
    loader = numbers_loader()
    statistics = replace(everything(), stage_seconds={"read": 0.04, "decode": 1.0}, cpu_seconds={"read": 0.04})
    loader.stats = lambda: statistics
    text = drawn(LoaderPanel(loader))
    assert "in read" not in text
    assert "1.0 s, computing" not in text, "the processor time of the decoder's threads is not known"


def test_the_line_and_its_advice_are_sentences() -> None:
    loader = numbers_loader()
    statistics = replace(everything(), blocked_seconds=9.0, hooks=["encode_sample"])
    loader.stats = lambda: statistics
    (line,) = LoaderPanel(loader).lines()
    assert "3 failed. " in line


def test_rates_are_those_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("energon_dali.integrations.loader_panel.time.monotonic", lambda: now)
    loader = full_loader()
    panel = LoaderPanel(loader)
    panel.lines()
    start = everything()
    for second in range(1, 31):
        now = float(second)
        # From the 20th second on, the trainer waits half of the time and gets half of the batches.
        late = max(0, second - 20)
        statistics = replace(
            start,
            batches=21 + 4 * second - 2 * late,
            elapsed_seconds=12.5 + second,
            blocked_seconds=0.5 + 0.5 * late,
        )
        loader.stats = lambda statistics=statistics: statistics
        (line,) = panel.lines()
    assert "81 batches" not in line
    assert "121 batches in 42 s, 2.0/s, trainer blocked 50% (in all 14%)" in line


def test_in_a_terminal_the_panel_is_drawn_again_and_again() -> None:
    loader = numbers_loader()
    target, file = console(terminal=True)
    with LoaderPanel(loader, console=target, refresh_seconds=0.02):
        assert len(list(islice(loader, 30))) == 30
        assert wait_until(lambda: file.getvalue().count("trainer blocked") >= 3, 20)
    text = file.getvalue()
    assert "\x1b[" in text
    assert re.search(r"30 in \d", text[text.rindex("batches per second") :])


def test_in_a_notebook_the_output_of_the_cell_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[str]] = []

    class Handle:
        def update(self, page: str) -> None:
            shown[-1].append(page)

    def display(page: str, *, display_id: bool) -> Handle:
        assert display_id
        shown.append([page])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    loader = numbers_loader()
    target = Console(file=io.StringIO(), force_jupyter=True)
    with LoaderPanel(loader, console=target, refresh_seconds=0.02):
        assert wait_until(lambda: len(shown[0]) >= 3, 20)
        assert len(list(islice(loader, 30))) == 30
    assert len(shown) == 1
    last = shown[0][-1]
    assert last.startswith("<pre")
    text = html.unescape(re.sub("<[^>]*>", "", last))
    assert "trainer blocked" in text
    assert re.search(r"batches per second +\S+ +30 in \d", text)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_has_all_numbers_at_each_width(width: int) -> None:
    target = Console(file=io.StringIO(), width=width, color_system=None)
    loader = full_loader()
    target.print(LoaderPanel(loader).render())
    text = target.file.getvalue()  # type: ignore[attr-defined]
    assert {len(line) for line in text.splitlines()} == {width}
    words = " ".join(line.strip("│ ") for line in text.splitlines())
    words = re.sub("[━╸╺ ]+", " ", words)
    for part in (
        "5.0% in all 5.0%, first batch after 2.5 s",
        "2.0 21 in 12 s",
        "0.4 MB/s 80 samples/s",
        "0.52 6.5 s, computing 92%",
        "dali-cpu 97, pil 900",
        "75.0% 750 samples, 76.5% wanted now",
        "7 encode_sample 5, filter 2",
        "a.tar/k1: [red]not an image[/]",
    ):
        assert part in words, (part, text)
    assert ("━" in text) == (width >= 80)


def test_without_a_terminal_it_prints_lines() -> None:
    loader = numbers_loader()
    target, file = console()
    panel = LoaderPanel(loader, console=target, line_seconds=0.05)
    panel.start()
    panel.start()
    assert len(list(islice(loader, 30))) == 30
    assert wait_until(lambda: file.getvalue().count("\n") >= 2, 20)
    panel.close()
    panel.close()
    text = file.getvalue()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert all(line.startswith("train, rank 0: ") for line in lines)
    assert re.search(r"30 batches in \d", lines[-1])


def test_an_error_in_the_training_is_not_hidden_and_nothing_goes_on_drawing() -> None:
    loader = numbers_loader()
    target, file = console()
    with pytest.raises(KeyError), LoaderPanel(loader, console=target, line_seconds=100):
        raise KeyError
    assert file.getvalue().count("\n") == 1


def test_a_forgotten_loader_leaves_the_panel() -> None:
    loader = numbers_loader()
    panel = LoaderPanel(loader)
    assert len(panel.lines()) == 1
    del loader
    assert panel.lines() == []


@pytest.mark.parametrize("options", [{"refresh_seconds": 0}, {"line_seconds": -1}])
def test_times_must_be_positive(options: Any) -> None:
    with pytest.raises(ConfigError, match="must be greater than 0"):
        LoaderPanel(numbers_loader(), **options)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.9, "59 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_panel_says_what_limits_a_loader_whose_trainer_waits() -> None:
    hooks: Any = {"hooks": ["encode_sample"]}
    waits = LoaderStatistics(
        batches=20,
        elapsed_seconds=10.0,
        blocked_seconds=9.0,
        first_batch_seconds=0.1,
        stage_seconds={"encode_sample": 19.0, "decode": 1.0},
        cpu_seconds={"encode_sample": 0.1, "decode": 1.0},
        **hooks,
    )
    advice = loader_panel._advice(waits, 2)
    assert "Your hook encode_sample takes most of it: 95% of the work, and it sleeps" in advice
    assert "more workers help" in advice
    assert loader_panel._advice(replace(waits, blocked_seconds=0.5), 2) == ""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(loader_panel._Body(waits, waits, advice))
    assert "Your hook encode_sample takes most of it" in " ".join(console.export_text().split())
