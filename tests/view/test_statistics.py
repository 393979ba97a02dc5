"""Statistics of a scan equal what is counted by hand; charts are plain SVG; mixtures are those of the plan."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from energon_dali import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_dali.errors import ConfigError
from energon_dali.view.drawn_mixture import drawn_mixture
from energon_dali.view.scan import Scan
from energon_dali.view.scan_source import ScanSource
from energon_dali.view.scan_store import BlockScanner
from energon_dali.view.site import TEMPLATES
from energon_dali.view.statistics import Chart, collect_statistics, edge_labels, nice_edges
from tests.loader.dataset_folder import prepare, write_shards


def draw(chart: Chart) -> str:
    return str(TEMPLATES.get_template("drawings.html").module.chart(chart))  # type: ignore[attr-defined]


def image(width: int, height: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width, height), 60).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten samples in two shards: five PNGs of 40 x 20, four JPEGs of 400 x 100, and one that is no image."""
    same = image(40, 20)
    samples = {f"a{number}": {"png": same if number < 3 else image(40, 20), "txt": b"x" * 10} for number in range(5)}
    samples |= {f"b{number}": {"jpg": image(400, 100, "JPEG", "L"), "txt": b"y" * 1000} for number in range(4)}
    samples["b4"] = {"jpg": b"no image at all", "txt": b""}
    return prepare(write_shards(tmp_path_factory.mktemp("statistics") / "data", samples, shards=2))


def test_figures_and_charts(folder: Path, tmp_path: Path) -> None:
    source = ScanSource(str(folder))
    scan = Scan([source], folder=tmp_path)
    assert collect_statistics(scan).charts == ()
    scan.store().create({"num_samples": 10})
    BlockScanner(tmp_path, [(source, scan.store().path.stem)]).scan((0, 0))
    found = collect_statistics(scan)
    charts = {chart.name: chart for chart in found.charts}
    assert (found.num_samples, found.share, found.num_failed, found.num_duplicates) == (10, 1.0, 1, 5)
    assert [(group.count, group.first, group.part) for group in found.duplicates] == [(4, 5, "txt"), (3, 0, "png")]
    assert [(group.count, group.first, group.key) for group in found.failures] == [(1, 9, "b4")]
    assert "not recognise" in found.failures[0].reason
    assert dict(zip(charts["sizes"].labels, charts["sizes"].counts, strict=True)) == {"40 x 20": 5, "400 x 100": 4}
    assert dict(zip(charts["modes"].labels, charts["modes"].counts, strict=True)) == {"rgb": 5, "gray": 4}
    assert charts["formats"].total == 20
    for name, expected in {"widths": [40] * 5 + [400] * 4, "aspect_ratios": [2.0] * 5 + [4.0] * 4}.items():
        chart = charts[name]
        assert chart.total == len(expected)
        edges = [float(label) for label in chart.labels]
        assert list(chart.counts) == [
            sum(low <= value < high for value in expected) for low, high in itertools.pairwise(edges)
        ]
    assert charts["text_lengths"].total == 10
    assert "durations" not in charts
    part = collect_statistics(scan, ranges=[(0, 5)])
    assert (part.num_samples, part.num_failed, part.num_duplicates) == (5, 0, 2)
    for chart in found.charts:
        drawn = ET.fromstring(draw(chart))
        bars = list(drawn.iter("{http://www.w3.org/2000/svg}rect"))
        assert len(bars) == len(chart.counts)


def test_labels_of_charts_are_text() -> None:
    chart = Chart("x", "<script>alert(1)</script>", ('"><img src=x onerror=alert(1)>', "b" * 100), (3, 1))
    drawn = draw(chart)
    assert {element.tag.rpartition("}")[2] for element in ET.fromstring(drawn).iter()} == {
        "svg",
        "title",
        "text",
        "rect",
    }
    assert not re.search(r"<script|<img", drawn)


@pytest.mark.parametrize(
    ("least", "most", "whole"),
    [
        (0, 0, True),
        (1, 1, True),
        (7, 7, False),
        (224, 224, True),
        (0, 1e9, True),
        (3, 10**7, True),
        (0.5, 2.5, False),
        (0.0, 0.0, False),
        (1e-9, 3e5, False),
        (99, 100, True),
    ],
)
def test_every_value_is_in_one_bar(least: float, most: float, whole: bool) -> None:
    edges = nice_edges(least, most, whole=whole)
    assert edges == sorted(set(edges))
    assert edges[0] <= least
    assert edges[-2] <= most < edges[-1]
    assert len(edges) <= 50
    assert len(set(edge_labels(edges))) == len(edges)


@pytest.fixture
def blend(folder: Path, tmp_path: Path) -> str:
    path = tmp_path / "blend.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        f"      - {{path: '{folder}', weight: 3, subflavors: {{name: one}}}}\n"
        f"      - {{path: '{folder}', weight: 1, subflavors: {{name: two}}}}\n"
        "  val:\n    blend_epochized:\n"
        f"      - {{path: '{folder}', repetitions: 2, subset: {{range: [0, 4]}}}}\n"
        f"      - {{path: '{folder}', repetitions: 1, subset: {{range: [0, 2]}}}}\n"
    )
    return str(path)


def test_a_mixture_is_what_a_loader_draws(blend: str) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2, seed_offset=5)
    encoder: DefaultTaskEncoder = DefaultTaskEncoder()  # type: ignore[type-arg]
    encoder.decoder = None
    dataset = get_train_dataset(blend, worker_config=config, task_encoder=encoder)
    with get_loader(dataset) as loader:
        names = Counter(sample.__subflavors__["name"] for sample, _ in zip(loader, range(400), strict=False))
    mixture = drawn_mixture(blend, num_draws=400, num_streams=2, seed_offset=5)
    assert (mixture.mode, mixture.num_draws) == ("weights", 400)
    assert [row.draws for row in mixture.rows] == [names["one"], names["two"]]
    assert [row.wanted for row in mixture.rows] == [0.75, 0.25]
    assert [row.given for row in mixture.rows] == [names["one"] / 400, names["two"] / 400]
    assert all(len(row.windows) == 10 for row in mixture.rows)
    assert mixture.rows[0].num_samples == 10
    assert mixture.rows[0].passes == names["one"] / 10


def schedule(folder: Path, path: Path, first: str, second: str) -> str:
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        f"      - {{path: '{folder}', weight: {first}, subflavors: {{name: one}}}}\n"
        f"      - {{path: '{folder}', weight: {second}, subflavors: {{name: two}}}}\n"
    )
    return str(path)


@pytest.mark.parametrize(("over", "last"), [("steps", 80), ("samples", 800)])
def test_a_mixture_over_time_is_what_a_job_with_global_batches_draws(
    folder: Path, tmp_path: Path, over: str, last: int
) -> None:
    weight = f"{{linear: {{0: 3, {last}: 0}}, over: {over}}}"
    path = schedule(folder, tmp_path / "moving.yaml", weight, f"{{step: {{0: 1}}, over: {over}}}")
    mixture = drawn_mixture(path, num_draws=1000, samples_per_step=10, seed_offset=5)
    assert (mixture.num_draws, mixture.samples_per_step) == (1000, 10)
    assert mixture.window_edges == tuple(range(0, 101, 10))
    encoder: DefaultTaskEncoder = DefaultTaskEncoder()  # type: ignore[type-arg]
    encoder.decoder = None
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=5)
    dataset = get_train_dataset(
        path,
        worker_config=config,
        task_encoder=encoder,
        batch_size=10,
        global_batch_size=10,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with get_loader(dataset) as loader:
        names = [one["name"] for batch, _ in zip(loader, range(100), strict=False) for one in batch.__subflavors__]
    for number, name in enumerate(("one", "two")):
        row = mixture.rows[number]
        assert row.draws == names.count(name)
        assert row.windows == tuple(names[n : n + 100].count(name) / 100 for n in range(0, 1000, 100))
        assert row.given == names.count(name) / 1000
        assert row.wanted == pytest.approx(sum(row.wanted_windows) / 10)
    # Shares are linear from 3 : 1 to 0 : 1 until step 80.
    assert mixture.rows[0].wanted_windows == pytest.approx([0.75 * (1 - (n + 0.5) / 8) for n in range(8)] + [0, 0])
    few = drawn_mixture(path, num_draws=21, samples_per_step=10)
    assert (few.num_draws, few.window_edges, len(few.rows[0].windows)) == (30, (0, 1, 2, 3), 3)
    late = drawn_mixture(path, num_draws=10**12, samples_per_step=1000)
    assert late.rows[1].given > 0.9999
    with pytest.raises(ConfigError, match="Give global_batch_size"):
        drawn_mixture(path)


def test_steps_are_for_weights_over_time(blend: str) -> None:
    with pytest.raises(ConfigError, match="samples_per_step=8 is for weights that change over time"):
        drawn_mixture(str(Path(blend)), "val", samples_per_step=8)


def test_repetitions_are_shares_of_an_epoch(blend: str, folder: Path) -> None:
    mixture = drawn_mixture(blend, "val", num_draws=1000)
    assert [(row.draws, row.repetitions, row.passes) for row in mixture.rows] == [(8, 2.0, 2.0), (2, 1.0, 1.0)]
    assert [(row.wanted, row.given) for row in mixture.rows] == [(0.8, 0.8), (0.2, 0.2)]
    alone = drawn_mixture(str(folder), num_draws=10)
    assert (alone.mode, [row.given for row in alone.rows]) == ("none", [1.0])
    with pytest.raises(ConfigError, match="num_draws=0"):
        drawn_mixture(blend, num_draws=0)
