"""The measurement of the look for damage leaves out what it says, and only while it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import damage_check
from energon_dali.decode import screen_image
from tests.decode.sample_images import broken_images, sample_images


def test_both_sides_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("jpeg-420", "jpeg-progressive", "png-rgb")]
    for path in paths:
        path.write_bytes(sample_images()[path.name])
    assert damage_check.measure("pictures", paths, 1) > 0
    assert "pictures: " in capsys.readouterr().out


def test_the_look_is_left_out_inside_alone() -> None:
    cut, wrong_sum = broken_images()["jpeg-no-end"], bytearray(sample_images()["png-palette"])
    wrong_sum[wrong_sum.index(b"PLTE") + 9] ^= 1
    for data in (cut, bytes(wrong_sum)):
        assert not screen_image(data).dali_decodable
        with damage_check.no_look():
            assert screen_image(data).dali_decodable
        assert not screen_image(data).dali_decodable
