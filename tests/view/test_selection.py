"""Samples are found by position and by what the index holds, as a walk over all of them would find them."""

from __future__ import annotations

import random
from pathlib import Path
from urllib.parse import unquote_plus

import numpy as np
import pytest
from click.testing import CliRunner

from energon_dali.cli.main import main
from energon_dali.view.dataset import FolderDataset
from energon_dali.view.query import GridQuery, SampleFilter, describe, read_query
from energon_dali.view.selection import Search, SearchCache, search_shard
from energon_dali.view.site import rows_of_shards
from energon_dali.view.viewed_sample import Rows
from tests.loader.dataset_folder import prepare, write_shards


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FolderDataset:
    """Sixty samples in six shards, whose keys contain each other and meet at their borders."""
    numbers = random.Random(3)
    letters = ["".join(numbers.choice("ab") for _ in range(1 + number % 5)) for number in range(60)]
    samples = {f"{text}/{number}": {"txt": b"x" * (number % 7)} for number, text in enumerate(letters)}
    return FolderDataset(str(prepare(write_shards(tmp_path_factory.mktemp("keys") / "data", samples, 6))))


def test_rows_are_the_numbers_of_their_ranges() -> None:
    numbers = random.Random(1)
    for _ in range(50):
        starts = [numbers.randrange(1000) for _ in range(numbers.randrange(6))]
        lengths = [numbers.randrange(5) for _ in starts]
        rows = Rows(np.array(starts, np.int64), np.array(lengths, np.int64))
        plain = [start + step for start, length in zip(starts, lengths, strict=True) for step in range(length)]
        assert len(rows) == len(plain)
        for start in range(-1, len(plain) + 2):
            assert rows.take(start, start + 3).tolist() == plain[max(0, start) : max(0, start + 3)]
        for index in {*plain, 0, 1001}:
            assert rows.position(index) == (plain.index(index) if index in plain else None)


@pytest.mark.parametrize("text", ["a", "ab", "b/1", "ba", "aab", "/5", "9a", "0b", "zz", "/"])
def test_parts_of_keys_are_found_within_one_key(dataset: FolderDataset, text: str) -> None:
    wanted = SampleFilter(key=text)
    for shard, (first, stop) in enumerate(zip(dataset.shard_starts, dataset.shard_starts[1:], strict=False)):
        for start, end in ((0, stop - first), (2, stop - first - 1), (4, 4)):
            keys = [dataset.sample(first + number).key for number in range(start, end)]
            found = search_shard(dataset, shard, start, end, wanted).tolist()
            assert found == [start + number for number, key in enumerate(keys) if text in key]


def test_a_search_has_pages_in_the_order_of_the_rows(dataset: FolderDataset) -> None:
    rows = Rows(np.array([40, 5], np.int64), np.array([15, 21], np.int64))
    wanted = SampleFilter(min_bytes=3)
    plain = [index for index in rows.take(0, 99).tolist() if dataset.sample(index).size >= 3]
    cache = SearchCache()
    search = cache.get("one", lambda: Search(dataset, rows, wanted))
    assert cache.get("one", lambda: Search(dataset, rows, wanted)) is search
    for start in range(0, len(plain), 4):
        assert search.page(start, start + 4, wait_seconds=60).indices.tolist() == plain[start : start + 4]
    whole = search.page(0, 1000, wait_seconds=60)
    assert (whole.indices.tolist(), whole.found, whole.searched, whole.error) == (plain, len(plain), 1.0, "")
    assert [search.position(index) for index in plain] == list(range(len(plain)))
    assert search.position(0) is None
    cache.close()


class Cancellable(Search):
    """Finds nothing, and records that it was cancelled."""

    def __init__(self, dataset: FolderDataset) -> None:
        super().__init__(dataset, Rows(np.zeros(0, np.int64), np.zeros(0, np.int64)), SampleFilter())
        self.is_cancelled = False

    def cancel(self) -> None:
        super().cancel()
        self.is_cancelled = True


def test_the_search_that_was_not_used_for_longest_is_cancelled(dataset: FolderDataset) -> None:
    cache = SearchCache()
    searches = [Cancellable(dataset) for _ in range(9)]
    for number in (*range(8), 0, 8):
        cache.get(number, lambda number=number: searches[number])  # type: ignore[misc]
    assert [search.is_cancelled for search in searches] == [False, True, *[False] * 7]
    assert cache.get(0, lambda: Cancellable(dataset)) is searches[0]
    cache.close()
    assert all(search.is_cancelled for search in searches)


def test_rows_of_shards_are_those_of_both(dataset: FolderDataset) -> None:
    rows = Rows(np.array([35, 3], np.int64), np.array([20, 30], np.int64))
    for text in ("_001", "_00", "shard_003.tar", "none", ""):
        found = sorted(rows_of_shards(dataset, rows, text).take(0, 99).tolist())
        assert found == sorted(index for index in rows.take(0, 99).tolist() if text in dataset.sample(index).shard)


def test_a_damaged_index_ends_a_search_with_its_reason(dataset: FolderDataset, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "data", {f"k{number}": {"txt": b"x"} for number in range(9)})
    prepare(folder)
    index = folder / ".nv-meta" / "extents.bin"
    content = bytearray(index.read_bytes())
    content[-200] ^= 255  # in the table of the shards
    index.write_bytes(content)
    damaged = FolderDataset(str(folder))
    rows = damaged.rows(None)
    page = Search(damaged, rows, SampleFilter(key="k")).page(0, 99, wait_seconds=60)
    assert "damaged" in page.error
    assert page.searched < 1
    damaged.close()


def test_an_address_says_all_that_was_asked_for() -> None:
    wanted = SampleFilter(
        text='"a b" c*', fails=True, min_width=3, max_aspect=1.5, duplicates=False, same_as=bytes.fromhex("00ff")
    )
    query = GridQuery("train", "s/0", wanted, 7, 24)
    given = dict(pair.split("=", 1) for pair in query.address().lstrip("?").split("&"))
    again, wrong = read_query({name: unquote_plus(value) for name, value in given.items()})
    assert (again, wrong) == (query, [])
    assert ("fails", "") in list(describe(query))
    assert GridQuery().address() == ""
    strange = {"page": "-3", "size": "11", "min_width": "9" * 5000, "min_aspect": "nan", "fails": "x", "same_as": "zz"}
    query, wrong = read_query(strange)
    assert query == GridQuery()
    assert len(wrong) == 3


def test_the_command_says_what_is_wrong_with_a_path(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "is not a folder"), (tmp_path, "is not prepared")):
        result = CliRunner().invoke(main, ["view", str(path)])
        assert result.exit_code == 1
        assert message in result.output
