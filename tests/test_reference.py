"""The tables of docs/reference/ are those that `python tools/reference_tables.py` writes of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali.decode.audio_front_ends.registry import AUDIO_FAMILIES
from energon_dali.decode.front_ends.registry import FAMILIES, VIDEO_FAMILIES
from energon_dali.decode.spec import IMAGE_DECODE_NAMES
from tools import reference_tables
from tools.reference_tables import BLOCK, TABLES, filled, in_short

PAGES = sorted(reference_tables.PAGES.glob("*.md"))
MADE_BY_RUNNING = ("audio_front_ends", "front_ends", "image_in_hooks", "video_front_ends")
QUICK_AUDIO = ("gemma4", "wav2vec2")
QUICK = ("fixed_size", "gemma3", "mllama", "siglip2")


def row_of(kind: str, first: str) -> tuple[str, ...]:
    """Returns the row of a committed table whose first cell is given."""
    (block,) = [found[0] for page in PAGES for found in BLOCK.finditer(page.read_text()) if found[2] == kind]
    (line,) = [line for line in block.splitlines() if line.startswith(f"| {first} |")]
    return tuple(cell.strip() for cell in line.strip("|").split("|"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_signatures_and_docstrings_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert filled(text, set(TABLES) - set(MADE_BY_RUNNING)) == text


def test_every_table_is_on_a_page() -> None:
    used = [(found[2], found[3]) for page in PAGES for found in BLOCK.finditer(page.read_text())]
    assert {name for name, _ in used} == set(TABLES)
    assert len(used) == len(set(used))


@pytest.mark.parametrize(
    ("kind", "families"),
    [("front_ends", FAMILIES), ("video_front_ends", VIDEO_FAMILIES), ("audio_front_ends", AUDIO_FAMILIES)],
)
def test_every_family_has_a_row(kind: str, families: Any) -> None:
    """`python tools/reference_tables.py front_ends` adds new ones."""
    (block,) = [found[0] for page in PAGES for found in BLOCK.finditer(page.read_text()) if found[2] == kind]
    rows = [line.split(" | ")[0].strip("| `") for line in block.splitlines() if line.startswith("| `")]
    assert rows == [family.family for family in families]


@pytest.mark.timeout(300)  # four loaders, and the first use of DALI
def test_hooks_see_images_as_the_page_says() -> None:
    (page,) = [page for page in PAGES if "table: image_in_hooks" in page.read_text()]
    text = page.read_text()
    assert filled(text, {"image_in_hooks"}) == text


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.family, marks=[] if family.family in QUICK else [pytest.mark.sweep])
        for family in FAMILIES
    ],
)
def test_batch_vision_returns_what_the_page_says(family: Any) -> None:
    made = reference_tables.front_end_row(family)
    assert row_of("front_ends", made[0]) == made


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.family, marks=[] if family.family == "qwen3_vl_video" else [pytest.mark.sweep])
        for family in VIDEO_FAMILIES
    ],
)
def test_batch_vision_returns_what_the_page_says_of_videos(family: Any) -> None:
    made = reference_tables.video_front_end_row(family)
    assert row_of("video_front_ends", made[0]) == made


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.family, marks=[] if family.family in QUICK_AUDIO else [pytest.mark.sweep])
        for family in AUDIO_FAMILIES
    ],
)
def test_batch_audio_returns_what_the_page_says(family: Any) -> None:
    made = reference_tables.audio_front_end_row(family)
    assert row_of("audio_front_ends", made[0]) == made


@pytest.mark.parametrize("name", IMAGE_DECODE_NAMES)
def test_values_are_in_the_range_of_the_page(name: str) -> None:
    cells = next(
        line.split(" | ") for line in reference_tables.image_decode().splitlines() if line.startswith(f'| `"{name}"`')
    )
    values = np.asarray(reference_tables.decoded_photograph(name))
    low, high = map(int, cells[4].split(" to "))
    assert low <= values.min() < values.max() <= high
    assert values.max() > high / 2, "the range of floats is not that of bytes"
    assert (
        values.shape[0] if "torch" in name and values.ndim == 3 else values.shape[-1] if values.ndim == 3 else 1
    ) == int(cells[5].split(",")[0].strip("| "))


def test_a_number_without_a_unit_is_refused() -> None:
    option = reference_tables.Option("Loader", "patience", ("int", "None"), 3, "How long.", "")
    with pytest.raises(SystemExit, match=r"Loader\.patience is a number: say its unit"):
        _ = option.unit
    assert reference_tables.Option("Loader", "patience_seconds", ("float",), 3.0, "How long.", "").unit == "seconds"
    assert reference_tables.Option("Loader", "patience", ("bool",), True, "Whether.", "").unit == ""


def test_types_are_written_as_a_reader_says_them() -> None:
    kinds = tuple(reference_tables.alternatives("Literal['a', 'b'] | Callable[[int], str] | None", reference_tables))
    assert (
        reference_tables.either(kinds)
        == '<nobr>`"a"`</nobr>, <nobr>`"b"`</nobr>, <nobr>`function`</nobr> or <nobr>`None`</nobr>'
    )
    assert reference_tables.either(("list[str | int]",)) == "<nobr>`list[str or int]`</nobr>"
    assert in_short([np.zeros((2, 3), np.uint8)]) == "list of uint8 [2, 3]"
