"""feed="native" follows any order exactly, and a bad sample costs no other."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali.decode import DaliDecoder, Decoded, DecodeFailure, HorizontalFlip, RandomResizedCrop, screen_image
from energon_dali.decode.dali.images.dali_reader import DaliReader, ReaderRow, write_index_files
from energon_dali.errors import ConfigError, ShardError
from tests.decode.sample_images import broken_images, sample_images

NAMES = ["jpeg-420", "jpeg-444", "png-rgb", "tiff-raw", "jpeg-411", "bmp-rgb", "jpeg-cmyk", "jpeg-progressive"]
BAD = 13
"""A truncated JPEG: its header is fine, its pixels are not."""
FILES = [sample_images()[NAMES[i % len(NAMES)]] if i != BAD else broken_images()["jpeg-half"] for i in range(20)]
ORDER = [7, 3, 3, 19, 0, 12, BAD, 1, 18, 2, 17, 5, 5, 5, 11, 10, 4]
"""A subset, permuted, with repetitions."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[ReaderRow]]:
    """Two shards of ten samples, with spaces in their names, every fourth without a text; and all rows."""
    folder = tmp_path_factory.mktemp("shards")
    paths, rows = [], []
    for shard in range(2):
        path = folder / f"shard {shard}.tar"
        with tarfile.open(path, "w") as tar:
            for i in range(10 * shard, 10 * shard + 10):
                for suffix, content in (("jpg", FILES[i]), ("txt", f"text {i}".encode())):
                    if suffix == "jpg" or i % 4:
                        member = tarfile.TarInfo(f"sample {i}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        with tarfile.open(path) as tar:
            found = {member.name: (member.offset_data, member.size) for member in tar}
        paths.append(str(path))
        for i in range(10 * shard, 10 * shard + 10):
            header = screen_image(FILES[i])
            rows.append(
                ReaderRow(
                    shard,
                    (found[f"sample {i}.jpg"], found.get(f"sample {i}.txt")),
                    header.width,
                    header.height,
                    header.orientation,
                    seed=i,
                )
            )
    return paths, rows


def read(decoder: DaliDecoder, paths: list[str], rows: list[ReaderRow], batch_size: int) -> Iterator[tuple[Any, Any]]:
    seen = 0
    with DaliReader(decoder, paths, rows, components=["jpg", "txt"], image="jpg", batch_size=batch_size) as reader:
        for batch in reader:
            assert batch.first == seen
            assert len(batch.images) == len(batch.parts["txt"]) == min(batch_size, len(rows) - seen)
            seen += len(batch.images)
            yield from zip(batch.images, batch.parts["txt"], strict=True)
    assert seen == len(rows)


@pytest.mark.parametrize("operations", [[], [RandomResizedCrop(32), HorizontalFlip()]], ids=["plain", "cropped"])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_equals_block_feed(shards: Any, batch_size: int, operations: list[Any]) -> None:
    paths, rows = shards
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu", operations=operations)
    blocks = decoder.decode_block([decoder.make_handle("jpg", data, seed=i) for i, data in enumerate(FILES)])
    got = list(read(decoder, paths, [rows[i] for i in ORDER], batch_size))
    for i, (outcome, text) in zip(ORDER, got, strict=True):
        assert text == (f"text {i}".encode() if i % 4 else None)
        if i == BAD:
            assert isinstance(outcome, DecodeFailure)
            continue
        expected = blocks[i]
        assert isinstance(outcome, Decoded)
        assert isinstance(expected, Decoded)
        assert np.array_equal(outcome.value, expected.value)


def test_values_outlive_the_reader(shards: Any) -> None:
    paths, rows = shards
    decoder = DaliDecoder(image_decode="rgb8", image_decode_device="cpu")
    held = [outcome.value for outcome, _ in read(decoder, paths, [rows[i] for i in (0, 1, 2, 8, 9)], 2)]
    for value, i in zip(held, (0, 1, 2, 8, 9), strict=True):
        (outcome,) = decoder.decode_block([decoder.make_handle("jpg", FILES[i])])
        assert isinstance(outcome, Decoded)
        np.testing.assert_array_equal(value, outcome.value)


def test_no_rows() -> None:
    decoder = DaliDecoder(image_decode_device="cpu")
    assert list(DaliReader(decoder, [], [], components=["jpg"], image="jpg", batch_size=4)) == []


def test_a_shard_that_is_too_short_is_refused_before_dali_opens_it(shards: Any, tmp_path: Path) -> None:
    paths, rows = shards
    short = tmp_path / "short.tar"
    (offset, size), _ = rows[9].extents
    short.write_bytes(Path(paths[0]).read_bytes()[: offset + size - 1])
    with pytest.raises(ShardError, match=r"short.tar has \d+ bytes, and a part is expected up to byte"):
        write_index_files(tmp_path, [str(short)], [rows[9]], 2, 0)
    with pytest.raises(ShardError, match="cannot be read"):
        write_index_files(tmp_path, [str(tmp_path / "gone.tar")], [rows[0]], 2, 0)


def test_a_shard_that_shrinks_while_it_is_read_is_an_error_and_no_crash(shards: Any, tmp_path: Path) -> None:
    """With mmap, DALI's default, this ends the process (SIGSEGV or SIGBUS)."""
    paths, rows = shards
    (tmp_path / "s.tar").write_bytes(Path(paths[0]).read_bytes())
    code = f"""
import os
from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali.images.dali_reader import ReaderRow
from energon_dali.decode.dali.images.dali_reader import DaliReader
from energon_dali.errors import ShardError
rows = [ReaderRow(0, (extent,)) for extent in {[row.extents[0] for row in rows[:10]]}] * 40
reader = DaliReader(DaliDecoder(image_decode="rgb8", image_decode_device="cpu"), [{str(tmp_path / "s.tar")!r}], rows,
                      components=["jpg"], image="jpg", batch_size=8)
next(reader)
os.truncate({str(tmp_path / "s.tar")!r}, 4096)
try:
    for _ in reader: pass
except ShardError as error:
    print("ShardError", "shrank" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "ShardError True"), done.stderr[-1500:]


def test_refuses_rows_that_do_not_fit(shards: Any, tmp_path: Path) -> None:
    paths, rows = shards
    decoder = DaliDecoder(image_decode_device="cpu")
    with pytest.raises(ConfigError, match="The image must be one of the components"):
        DaliReader(decoder, paths, rows, components=["txt"], image="jpg", batch_size=4)
    for row, text in (
        (replace(rows[0], extents=(None, rows[0].extents[1])), "must not be None"),
        (replace(rows[0], extents=(rows[0].extents[0],)), "needs 2 extents"),
        (replace(rows[0], extents=((100, 5), None)), "multiples of 512"),
    ):
        with pytest.raises(ConfigError, match=text):
            write_index_files(tmp_path, paths, [row], 2, 0)
