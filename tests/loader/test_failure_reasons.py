"""Failures are grouped by what is wrong with the data, although one line of the decoder raises for all of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from energon_dali import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_val_dataset
from energon_dali.datasets.hooks import pattern_of
from energon_dali.datasets.metrics import KEPT_EXAMPLES, FailureRecord, Metrics
from energon_dali.loader.failure_report import FailureGroup, group_failures, group_line
from tests.loader.dataset_folder import prepare, write_shards


def jpeg(width: int, height: int = 20) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width, height), 50).convert("RGB").save(file, "JPEG")
    return file.getvalue()


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8", max_pixels=1000)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[FailureGroup]:
    good = jpeg(30)
    samples = {f"good{number}": {"jpg": good, "txt": b"fine"} for number in range(3)}
    samples |= {f"utf{number}": {"jpg": good, "txt": b"caf\xe9 %d" % number} for number in range(4)}
    samples |= {f"large{number}": {"jpg": jpeg(100 + 7 * number), "txt": b"x"} for number in range(3)}
    samples |= {f"cut{number}": {"jpg": good[: 300 - number], "txt": b"x"} for number in range(2)}
    samples |= {"empty": {"jpg": b"", "txt": b"x"}}
    folder = prepare(
        write_shards(tmp_path_factory.mktemp("reasons") / "captions", samples),
        {"image": "jpg", "caption": "txt"},
        "CaptioningSample",
    )
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with get_savable_loader(get_val_dataset(str(folder), worker_config=config, task_encoder=Encoder())) as loader:
        assert len(list(loader)) == 3
        return group_failures(loader._metrics.snapshot())


def test_each_reason_has_a_group_with_fields_for_programs(groups: list[FailureGroup]) -> None:
    assert [group.count for group in groups] == [4, 3, 2, 1]
    assert [group.key[:3] for group in groups] == ["utf", "lar", "cut", "emp"]
    assert {(group.stage, group.error, Path(group.dataset).name) for group in groups} == {
        ("load", "DecodeError", "captions")
    }
    assert [group.route for group in groups] == ["basic", "screen", "screen", "screen"]
    assert all(FailureGroup.from_dict(group.as_dict()) == group for group in groups)


def test_texts_show_each_reason_once(groups: list[FailureGroup]) -> None:
    lines = [group_line(group) for group in groups]
    assert "Part 'txt': This is not a valid .txt: " in lines[0]
    assert "The header says 100 x 20 pixels" in lines[1]
    assert all(line.count("Part '") == 1 for line in lines)
    assert all("media_decoder.py:" in line for line in lines)


@pytest.mark.parametrize(
    ("reason", "pattern"),
    [
        ("Part 'jpg': The header says 100,000 x 9 pixels", "Part 'jpg': The header says N x N pixels"),
        ("no file 'a/b 7.jpg' in '/data/x'", "no file '...' in '...'"),
        ("codec can't decode 'a 1', isn't it", "codec can't decode '...', isn't it"),
        ("at 0x7fA1 1.25\n s", "at N N s"),
        ("word " * 100, ("word " * 100)[:200]),
    ],
)
def test_reasons_are_compared_without_what_differs_from_sample_to_sample(reason: str, pattern: str) -> None:
    assert pattern_of(reason) == pattern


def test_kinds_do_not_grow_without_end() -> None:
    metrics = Metrics()
    for number in range(KEPT_EXAMPLES):
        assert metrics.has_room_for(f"kind {number}")
        metrics.fail(FailureRecord("load", "reason", kind=f"kind {number}"))
    assert metrics.has_room_for("kind 0")
    assert not metrics.has_room_for("another")
