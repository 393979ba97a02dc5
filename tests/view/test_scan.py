"""The background scan finds what no index holds, in processes of its own, and survives whatever ends them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from energon_dali import DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset
from energon_dali.errors import ConfigError, StorageError
from energon_dali.shards import prepare_jsonl
from energon_dali.view.query import SampleFilter, match_expression
from energon_dali.view.scan import Scan, ScanProgress
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.scan_store import BLOCK, BlockScanner, ScanStore, merge_ranges
from tests.av.corpus import audio_file, video_file
from tests.loader.dataset_folder import captioning_sample, prepare, write_shards


def scan_here(path: Path, folder: Path) -> Scan:
    """Scans a dataset in this process."""
    source = ScanSource(str(path))
    scan = Scan([source], folder=folder)
    store = scan.store()
    opened = source.open()
    store.create({"num_samples": opened.num_samples, **({"note": opened.note} if opened.note else {})})
    opened.close()
    scanner = BlockScanner(folder, [(source, store.path.stem)])
    for block in range(-(-opened.num_samples // BLOCK)):
        scanner.scan((0, block))
    return scan


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve samples: 1 lacks a caption, 2 is cut off, 3 and 5 are alike, 6 has a palette, 7 is a video, 8 audio."""
    samples = {f"k{number:04d}": captioning_sample(4 * number) for number in range(12)}
    del samples["k0001"]["txt"]
    samples["k0002"]["jpg"] = samples["k0002"]["jpg"][:200]
    samples["k0005"]["jpg"] = samples["k0003"]["jpg"]
    palette = io.BytesIO()
    Image.new("RGB", (30, 10), (200, 10, 10)).quantize(4).save(palette, "PNG")
    samples["k0006"] = {"png": palette.getvalue(), "txt": "Ein Bär läuft".encode()}
    samples["k0007"] = {"mp4": video_file("h264-b-mp4"), "txt": b'a "quoted" AND NOT film'}
    samples["k0008"] = {"mp3": audio_file("mp3")[:3000] + b"\xff" * 3000, "txt": b"-"}
    folder = write_shards(tmp_path_factory.mktemp("scan") / "data", samples)
    return prepare(folder, {"image": "jpg,png,mp4,mp3", "caption": "txt"})


@pytest.fixture(scope="module")
def scanned(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Scan:
    return scan_here(dataset, tmp_path_factory.mktemp("cache"))


def test_failures_are_those_that_a_loader_counts(dataset: Path, scanned: Scan) -> None:
    encoder: Any = DefaultTaskEncoder()
    loader = get_loader(
        get_val_dataset(
            str(dataset),
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=lambda *_: None),
            task_encoder=encoder,
        )
    )
    with loader:
        delivered = sum(1 for _ in loader)
        counted = {failure["key"]: failure for failure in loader.stats().failures}
    found = {failure.key: failure for failure in scanned.failures()}
    assert delivered == 12 - len(counted)
    assert set(counted) == {"k0001", "k0002"}
    for key, failure in counted.items():
        assert (found[key].reason, found[key].stage) == (" ".join(failure["reason"].split()), failure["stage"])
    # The loader opens videos and audio only when a hook asks for frames; the scan decodes them to the end.
    assert set(found) - set(counted) == {"k0008"}
    assert found["k0008"].stage == "decode"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SampleFilter(fails=True), [1, 2, 8]),
        (SampleFilter(reason="no part 'txt'"), [1]),
        (SampleFilter(text="bär"), [6]),
        (
            SampleFilter(text='"picture number" 1*'),
            [3, 4],
        ),
        (SampleFilter(text='"quoted AND'), [7]),
        (SampleFilter(text="AND NOT OR NEAR("), []),
        (SampleFilter(text='"'), []),
        (SampleFilter(key="k000", fails=False, min_bytes=1), [0, 3, 4, 5, 6, 7, 9]),
        (SampleFilter(key="%"), []),
        (SampleFilter(duplicates=True), [3, 5]),
        (SampleFilter(format="h264"), [7]),
        (SampleFilter(kind="video", min_duration=0.1, max_duration=1e9), [7]),
        (SampleFilter(mode="palette"), [6]),
        (SampleFilter(min_aspect=2.5, kind="image"), [6]),
        (SampleFilter(max_width=30), [6]),
        (SampleFilter(format="jpeg", min_width=10**30), []),
        (SampleFilter(part="txt", max_text_length=1), [8]),
    ],
)
def test_filters(scanned: Scan, wanted: SampleFilter, expected: list[int]) -> None:
    found = scanned.matches(wanted)
    assert (found.indices, found.share) == (expected, 1.0)
    assert scanned.count(wanted) == len(expected)


def test_pages_and_ranges(scanned: Scan) -> None:
    everything = SampleFilter()
    assert everything.is_empty
    assert scanned.matches(everything, offset=4, limit=4).indices == [4, 5, 6, 7]
    assert scanned.matches(everything, ranges=[(6, 8), (1, 3), (2, 4), (5, 5)], offset=1).indices == [2, 3, 6, 7]
    assert scanned.count(everything, ranges=[(6, 8), (1, 3), (2, 4)]) == 5
    assert merge_ranges([(5, 5), (4, 6), (0, 2), (2, 3)]) == [(0, 3), (4, 6)]


def test_words_of_a_search_are_never_operators() -> None:
    assert match_expression('one "two three" fo* x" -y "') == '"one" "two three" "fo"* "x" "-y"'
    assert match_expression(" * ") == '""'


@pytest.mark.usefixtures("warm_workers")
def test_a_process_scans_cancels_and_goes_on(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(40 * BLOCK)) + "{no\n")
    prepare_jsonl(str(lines))
    cache = tmp_path / "cache"
    scan = Scan([ScanSource(str(lines))], folder=cache, num_processes=1)
    assert scan.progress() == ScanProgress(0, 40 * BLOCK + 1, running=False)
    assert scan.matches(SampleFilter(fails=True)).indices == []
    scan.start()
    scan.start()
    while scan.progress().scanned < 2 * BLOCK:
        assert not scan.wait(0.01), scan.progress()
    scan.cancel()
    progress = scan.progress()
    assert not progress.running
    assert progress.scanned >= 2 * BLOCK
    assert scan.matches(SampleFilter(text="line")).share == progress.share
    again = Scan([ScanSource(str(lines))], folder=cache, num_processes=1)
    again.start()
    assert again.wait(120)
    assert again.progress() == ScanProgress(40 * BLOCK + 1, 40 * BLOCK + 1, running=False)
    assert [failure.index for failure in again.failures()] == [40 * BLOCK]
    assert again.count(SampleFilter(text="line")) == 40 * BLOCK
    assert not (tmp_path / "lines.jsonl.sqlite").exists()
    # The data changes: an earlier scan says nothing about it.
    lines.write_text('{"text": "other"}\n')
    prepare_jsonl(str(lines))
    assert Scan([ScanSource(str(lines))], folder=cache).progress().scanned == 0


@pytest.mark.sweep
def test_a_sample_that_ends_the_process_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset's own loader kills the process."""
    folder = prepare(write_shards(tmp_path / "data", {f"k{number}": {"txt": b"%d" % number} for number in range(6)}))
    (folder / ".nv-meta" / "sample_loader.py").write_text(
        "import os\n"
        "def sample_loader(raw):\n"
        "    if raw['__key__'] == 'k4':\n"
        "        os.kill(os.getpid(), 11)\n"
        "    return {'__key__': raw['__key__'], 'text': raw['txt']}\n"
        "def part_filter(part):\n"
        "    return part == 'txt'\n"
    )
    config = {"sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    config |= {"sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}  # type: ignore[dict-item]
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    untrusted = scan_here(folder, tmp_path / "cache")
    assert untrusted.failures() == []
    assert "allow_code" in untrusted.note()
    scan = Scan([ScanSource(str(folder), allow_code=True)], folder=tmp_path / "cache", num_processes=1)
    scan.start()
    assert scan.wait(120)
    assert scan.progress() == ScanProgress(6, 6, running=False)
    assert [(failure.key, failure.reason) for failure in scan.failures()] == [
        ("k4", "Decoding it ended the process with SIGSEGV"),
    ]
    assert scan.note() == ""


def test_a_file_that_is_not_a_scan_is_named(tmp_path: Path) -> None:
    store = ScanStore(tmp_path, "0" * 32)
    store.path.write_bytes(b"something else, of more than a few bytes" * 100)
    with pytest.raises(StorageError, match="cannot be used: file is not a database"):
        store.done_blocks()
    with pytest.raises(ConfigError, match="no dataset"):
        Scan([])
