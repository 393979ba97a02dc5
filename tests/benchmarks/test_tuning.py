"""The sweeps of DALI's settings and of the crossovers, and that "auto" and the documentation say what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tuning
from benchmarks.tuning_crossover import CLIP_CODECS, best_range, crossover_table
from benchmarks.tuning_media import encode_video
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.dali.thresholds import CLIPS, IMAGES
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.pyav import stage_clips

MEASURED = [(kind, path) for kind in ("cpu", "gpu") if (path := tuning.RESULTS / f"tuning-{kind}.json").exists()]


def rows(*ratios: float) -> list[dict[str, Any]]:
    """Returns rows of sizes 100, 10,000, 1,000,000, ..."""
    return [{"pixels": 100 ** (place + 1), "ratio": ratio} for place, ratio in enumerate(ratios)]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0.5, 0.5, 0.5), (0, None)),
        ((2.0, 2.0, 2.0), (None, None)),
        ((0.5, 2.0, 2.0), (0, 1000)),
        ((2.0, 2.0, 0.5), (100_000, None)),
        ((2.0, 0.5, 2.0), (1000, 100_000)),
        ((0.5, 1.01, 0.5), (0, None)),  # noise between two clear gains
        ((1.0, 1.0, 1.0), (None, None)),  # nothing to gain
    ],
)
def test_the_range_that_gains_most(ratios: tuple[float, ...], expected: tuple[int | None, int | None]) -> None:
    assert best_range(rows(*ratios), 1.0) == expected


def test_a_quick_run_measures_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "tuning.json"
    assert tuning.main(["--device", "cpu", "--quick", "--json", str(target)]) == 0
    report = json.loads(target.read_text())
    assert {row["factor"] for row in report["settings"]} == {"num_threads", "block"}
    assert {row["what"] for row in report["crossover"]} == {"image", "clips"}
    assert all(row["ratio"] > 0 for row in report["crossover"] + report["settings"])
    assert tuning.main(["--table", str(target)]) == 0
    assert '"jpeg": Threshold(' in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tuning.BEGIN}\nold\n{tuning.END}\nafter\n")
    (tmp_path / "tuning-cpu.json").write_text(json.dumps(report))  # quick: it measured nothing
    (tmp_path / "tuning-gpu.json").write_text(json.dumps({**report, "quick": False}))
    renewed = tuning.renew_page(page, tmp_path)
    assert "old" not in renewed
    assert renewed.startswith("before")
    assert renewed.endswith("after\n")
    assert "| jpeg | " in renewed
    assert "**DALI on the CPU**: not measured yet." in renewed


def test_a_gpu_varies_every_setting_around_the_defaults() -> None:
    points = tuning.settings("gpu", (1920, 1080), quick=False)
    assert {"hw_decoder_load", "preallocate hints", "device_memory_padding", "host_memory_padding"} <= set(points)
    for factor, settings in points.items():
        assert len(settings) >= 1
        if factor != "num_threads":
            assert tuning.Setting() in settings.values(), factor


def test_a_sweep_that_is_interrupted_leaves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "what": "clips",
        "format": "h264",
        "width": 4,
        "height": 3,
        "dali_us": 1,
        "dali_processor_us": 1,
        "cpu_processor_us": 1,
        "ratio": 1.0,
    }

    def sweep(kind: str, *, quick: bool) -> Iterator[dict[str, Any]]:
        yield row
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "sweep_clips", sweep)
    target = tmp_path / "tuning.json"
    with pytest.raises(KeyboardInterrupt):
        tuning.main(["--only", "clips", "--json", str(target)])
    assert json.loads(target.read_text())["crossover"] == [row]


@pytest.mark.parametrize("codec", CLIP_CODECS["gpu"])
def test_a_gpu_decodes_the_videos_of_its_sweep(codec: str) -> None:
    handle, file = stage_clips("video", encode_video(codec, (320, 240), 8), VideoClips(1, 8))
    file.close()
    assert is_eligible_video(handle, "gpu")


def test_the_page_is_made_from_the_results() -> None:
    assert tuning.renew_page() == tuning.PAGE.read_text(encoding="utf-8"), "run python -m benchmarks.tuning --docs"


@pytest.mark.parametrize(("kind", "path"), MEASURED)
def test_auto_follows_the_results(kind: Any, path: Path) -> None:
    """The table of "auto" is what `--table` prints; a format without a measurement is marked as guessed."""
    found = crossover_table(json.loads(path.read_text())["crossover"], kind)
    for what, table in (("image", IMAGES[kind]), ("clips", CLIPS[kind])):
        assert {name: (entry.least_pixels, entry.most_pixels) for name, entry in table.items() if entry.measured} == {
            name: (least, most) for name, (least, most) in found[what].items()
        }
