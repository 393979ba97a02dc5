"""`energon-dali measure`: what it stores, in which way it runs, and how measures are found again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.remote.s3_server import S3Server
from energon_dali import (
    AugmentTaskEncoder,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_dali.assembly import measuring
from energon_dali.assembly.measure_job import Chunk, MeasureJob
from energon_dali.assembly.measures import open_measures
from energon_dali.assembly.measuring import MeasureResult, measure_datasets
from energon_dali.assembly.mixture import open_sources
from energon_dali.assembly.options import DatasetOptions, SourceOptions
from energon_dali.decode.front_ends import FrontEnd
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import ConfigError, EnergonDaliError, FatalSampleError
from energon_dali.plan.measured import SampleValues
from energon_dali.shards import WebdatasetFolder, prepare_dataset, prepare_jsonl
from energon_dali.shards.index.sqlite_index import SqliteWriter
from energon_dali.shards.measures import EstimatedValues, places
from energon_dali.shards.meta.dataset_config import write_dataset_config
from energon_dali.shards.storage import StoragePath
from tests.assembly import measured_encoders as encoders
from tests.shards.tars import captions, write_tar
from tests.shards.web_server import serving

ROOT = Path(__file__).parents[2]
CAPTIONING = {
    "__module__": "megatron.energon",
    "__class__": "StandardWebdatasetFactory",
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}
CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))


def dataset(root: Path, shards: int = 3, samples: int = 4, config: Any = CAPTIONING) -> Path:
    captions(root, shards=shards, samples=samples)
    prepare_dataset(root, split_ratio={"train": 2, "val": 1})
    write_dataset_config(StoragePath.of(root), config)
    return root


def measure(path: object, encoder: Any = None, **options: Any) -> list[MeasureResult]:
    return measure_datasets(str(path), encoder or encoders.Letters(), **options)


def opened(path: object, encoder: Any, **source: Any) -> Callable[..., list[SampleValues]]:
    options = DatasetOptions(
        split_part="train",
        encoder=encoder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        source=SourceOptions(**source),
        training=True,
    )
    blend, loaded = open_sources(str(path), options)
    return lambda **how: [
        open_measures(one, reference, options, **how) for one, reference in zip(loaded, blend.sources, strict=True)
    ]


def values(path: object, encoder: Any, name: str) -> list[int]:
    (found,) = opened(path, encoder)()
    return found.take(name, np.arange(found.num_samples)).tolist()


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / ".nv-meta").glob("measures-*.bin")}


def test_every_sample_of_all_splits_is_measured(tmp_path: Path) -> None:
    root = dataset(tmp_path / "data")
    (result,) = measure(root, encoders.Measuring())
    assert (result.num_samples, result.num_measured, result.was_measured) == (12, 12, False)
    assert values(root, encoders.Measuring(), "text_tokens") == [len("caption s0_0")] * 12
    assert values(root, encoders.Measuring(), "vowels") == [3] * 12
    assert values(root, encoders.Measuring(), "tokens") == [12] * 12
    assert values(root, encoders.Measuring(), "vision_squares") == [0] * 12
    assert measure(root, encoders.Measuring())[0].was_measured
    measure(root)
    assert len(files(root)) == 2, "each task encoder has its own file"


@pytest.mark.parametrize("decoder", [SampleDecoder, DaliDecoder])
def test_images_count_by_the_layouts_of_the_front_end(tmp_path: Path, decoder: Any) -> None:
    root = tmp_path / "data"
    captions(root, shards=1, samples=1)
    prepare_dataset(root)
    write_dataset_config(StoragePath.of(root), CAPTIONING)
    encoder = encoders.Letters()
    front_end = FrontEnd.from_processor(QWEN, image_token_id=7)
    encoder.decoder = decoder(front_end=front_end)
    measure(root, encoder)
    layout = front_end.layout(8, 9)
    patches = layout.grid[1] * layout.grid[2]
    found = {name: values(root, encoder, name)[0] for name in ("text_tokens", "vision_tokens", "vision_patches")}
    assert found == {"text_tokens": 12, "vision_tokens": layout.num_tokens, "vision_patches": patches}
    assert values(root, encoder, "vision_squares") == [patches**2]


def test_measures_do_not_depend_on_what_changes_pixels_alone(tmp_path: Path) -> None:
    root = dataset(tmp_path / "data")
    encoder = encoders.Letters()
    encoder.decoder = SampleDecoder(front_end=FrontEnd.from_processor(QWEN, image_token_id=7))
    measure(root, encoder)
    encoder.decoder = DaliDecoder(front_end=FrontEnd.from_processor(QWEN, image_token_id=7, dtype="bfloat16"))
    assert opened(root, encoder)()
    assert opened(root, AugmentTaskEncoder(encoder))()
    encoder.decoder = SampleDecoder(front_end=FrontEnd.from_processor({**QWEN, "max_pixels": 28 * 28 * 64}))
    with pytest.raises(ConfigError, match="front end, image max_pixels was 1003520 and is 50176"):
        opened(root, encoder)()


def test_what_trains_after_decoding_is_not_needed(tmp_path: Path) -> None:
    class Late(DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: Any) -> Any:
            raise AssertionError("it runs after decoding")

        def measure_sample(self, sample: Any) -> Any:
            return {"text_tokens": len(sample.caption), "width": sample.image.width}

    root = dataset(tmp_path / "data")
    measure(root, Late())
    assert values(root, Late(), "width")[:4] == [8, 9, 10, 11]

    class Silent(DefaultTaskEncoder[Any, Any, Any, Any]):
        pass

    with pytest.raises(ConfigError, match=r"shard_0.tar/s0_0 is not known.*Silent\.measure_sample"):
        measure(root, Silent())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"a": -1}, "-1"),
        ({"a": 1.0}, r"1\.0"),
        ({"a": True}, "True"),
        ({"a": 1 << 62}, "4611686018427387904"),
        ({"a": "1"}, "'1'"),
        ({"a b": 1}, "a b"),
        ({"tokens": 1}, "return these"),
        ({1: 1}, "1"),
        ([1], "1"),
        (None, "None"),
        ({f"m{number}": 1 for number in range(70)}, "70 names"),
    ],
)
def test_what_is_no_measure_is_an_error_that_names_the_sample(tmp_path: Path, returned: Any, message: str) -> None:
    class Wrong(encoders.Letters):
        def measure_sample(self, sample: Any) -> Any:
            return returned

    root = dataset(tmp_path / "data", shards=1)
    with pytest.raises(ConfigError, match=rf"{message}.* for shard_0\.tar/s0_0"):
        measure(root, Wrong())
    assert files(root) == {}


def test_names_that_change_are_an_error_that_names_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(encoders.Letters):
        def measure_sample(self, sample: Any) -> Any:
            return {"even" if sample.__key__.endswith("_0") else "odd": 1}

    root = dataset(tmp_path / "data", shards=1)
    for chunk in (1024, 1):  # within a chunk, and between two
        monkeypatch.setattr(measuring, "CHUNK", chunk)
        with pytest.raises(ConfigError, match=r"s0_1 than for shard_0\.tar/s0_0: they differ in even, odd"):
            measure(root, Changing())


def test_samples_that_cannot_be_measured_are_marked_and_counted(tmp_path: Path) -> None:
    root = dataset(tmp_path / "data")
    (result,) = measure(root, encoders.Picky())
    assert result.num_measured == 6
    assert {reason: one.count for reason, one in result.unmeasured.items()} == {
        "preencode_sample: ValueError": 3,
        "preencode_sample: skipped": 3,
    }
    assert result.unmeasured["preencode_sample: ValueError"].example == "shard_0.tar/s0_1: ValueError: not this one"
    assert values(root, encoders.Picky(), "tokens") == [12, -1, -1, 12] * 3


def test_errors_of_the_program_end_the_run(tmp_path: Path) -> None:
    class Broken(encoders.Letters):
        def measure_sample(self, sample: Any) -> Any:
            return undefined  # type: ignore[name-defined]  # noqa: F821

    class Failing(encoders.Letters):
        def measure_sample(self, sample: Any) -> Any:
            raise ValueError("never")

    root = dataset(tmp_path / "data")
    with pytest.raises(FatalSampleError, match="undefined"):
        measure(root, Broken())
    with pytest.raises(ConfigError, match=r"No sample.*12 x measure_sample: ValueError, such as shard_0.*never"):
        measure(root, Failing())
    assert files(root) == {}


def test_two_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CHUNK", 3)
    monkeypatch.setattr(measuring, "SECONDS_PER_WORKER", 1e-9)
    root = dataset(tmp_path / "data")
    measure(root, encoders.Picky())
    alone = files(root)
    measure(root, encoders.Picky(), again=True, num_workers=2)
    assert files(root) == alone


@pytest.mark.sweep  # a cluster takes as long as hundreds of other tests
@pytest.mark.timeout(300)
def test_two_nodes_of_ray_write_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    root = dataset(tmp_path / "data")
    measure(root, encoders.Picky())
    alone = files(root)
    done = subprocess.run(
        [sys.executable, "-m", "tests.assembly.measure_on_ray", str(root)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert files(root) == alone


def text_dataset(root: Path, shards: range, samples: int = 5) -> Path:
    for shard in shards:
        write_tar(root / f"{shard:02}.tar", {f"{shard}_{n}.txt": b"x" * (shard + n) for n in range(samples)})
    prepare_dataset(root)
    config = {**CAPTIONING, "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"}}
    write_dataset_config(StoragePath.of(root), {**config, "field_map": {"text": "txt"}})
    return root


def test_a_grown_dataset_takes_over_what_is_known(tmp_path: Path) -> None:
    root = text_dataset(tmp_path / "data", range(2, 5))
    encoder = text_encoder()
    measure(root, encoder)
    write_tar(root / "03.tar", {f"3_{n}.txt": b"y" * 9 for n in range(5)})  # changed
    text_dataset(root, range(2))  # before the others
    write_tar(root / "03.tar", {f"3_{n}.txt": b"y" * 9 for n in range(5)})
    prepare_dataset(root)
    with pytest.raises(ConfigError, match=r"other.* shards"):
        opened(root, encoder)()
    (result,) = measure(root, encoder)
    assert (result.num_samples, result.num_taken_over) == (25, 10)
    expected = [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, *[9] * 5, 4, 5, 6, 7, 8]
    assert values(root, encoder, "text_tokens") == expected
    grown = files(root)
    measure(root, encoder, again=True)
    assert files(root) == grown


def text_encoder() -> Any:
    class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
        def measure_sample(self, sample: Any) -> Any:
            return {"text_tokens": len(sample.text)}

    return Texts()


def test_a_damaged_file_is_refused_and_measured_again(tmp_path: Path) -> None:
    root = text_dataset(tmp_path / "data", range(3))
    encoder = text_encoder()
    measure(root, encoder)
    (path,) = (root / ".nv-meta").glob("measures-*.bin")
    good = path.read_bytes()
    path.write_bytes(good[:200])
    with pytest.raises(ConfigError, match="energon-dali measure"):
        opened(root, encoder)()
    measure(root, encoder)
    assert path.read_bytes() == good


def test_a_read_only_dataset_keeps_its_measures_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = text_dataset(tmp_path / "data", range(3))
    encoder = text_encoder()
    monkeypatch.setattr(places.os, "access", lambda path, mode: not str(path).startswith(str(root)))
    (result,) = measure(root, encoder)
    assert result.file.url.startswith(str(tmp_path / "data-home" / "energon-dali" / "measures" / "data-"))
    assert files(root) == {}
    assert values(root, encoder, "text_tokens")[:5] == [0, 1, 2, 3, 4]
    monkeypatch.setenv("ENERGON_DALI_MEASURES", str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="has no measures"):
        opened(root, encoder)()
    (result,) = measure(root, encoder)
    assert result.file.url.startswith(str(tmp_path / "elsewhere"))
    assert values(root, encoder, "text_tokens")[:5] == [0, 1, 2, 3, 4]
    assert list(tmp_path.rglob(".energon-dali-*")) == []


def test_a_bucket_keeps_the_measures_of_its_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = text_dataset(tmp_path / "buckets" / "data" / "texts", range(3))
    encoder = text_encoder()
    with S3Server(tmp_path / "buckets") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        (result,) = measure("s3://data/texts", encoder)
        assert result.file.url.startswith("s3://data/texts/.nv-meta/measures-")
        assert values("s3://data/texts", encoder, "text_tokens")[:5] == [0, 1, 2, 3, 4]
        assert len(list((tmp_path / "cache" / "energon-dali" / "measures").iterdir())) == 1
        server.reset()
        opened("s3://data/texts", encoder)()
        copied = server.counters()
        remote = files(root)
        assert measure("s3://data/texts", encoder)[0].was_measured
    assert copied is not None
    measure(root, encoder, again=True)
    assert files(root) == remote


def test_measures_of_a_dataset_on_a_web_server_are_kept_by_the_user(tmp_path: Path) -> None:
    text_dataset(tmp_path / "served" / "texts", range(2))
    encoder = text_encoder()
    with serving(tmp_path / "served") as web:
        (result,) = measure(f"{web.url}/texts", encoder)
        assert result.file.is_local
        assert values(f"{web.url}/texts", encoder, "text_tokens")[:5] == [0, 1, 2, 3, 4]


def test_a_jsonl_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * number}) + "\n" for number in range(9)))
    prepare_jsonl(str(path))

    class Lines(encoders.Cooking):
        cookers = ()

        def cook_crude_sample(self, sample: Any) -> Any:  # type: ignore[override]
            sample["length"] = len(sample["json"]["text"])
            return sample

        def preencode_sample(self, sample: Any) -> Any:
            return sample

    (result,) = measure(path, Lines())
    assert result.file.name.startswith("lines.jsonl.measures-")
    assert values(path, Lines(), "tokens") == list(range(9))


def test_the_crude_datasets_of_a_metadataset_with_their_cookers_and_stores(tmp_path: Path) -> None:
    crude, other = dataset(tmp_path / "crude", config=CRUDE), dataset(tmp_path / "other", samples=2)
    meta = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {
            "train": {
                "blend": [
                    {"path": str(crude), "weight": 1, "subflavors": {"with": "names"}, "aux": {"names": str(crude)}},
                    {"path": str(crude), "weight": 1},
                    {"path": str(other), "weight": 1},
                ]
            },
            "val": {"path": str(other)},
        },
    }
    path = tmp_path / "meta.yaml"
    path.write_text(json.dumps(meta))
    with pytest.raises(ConfigError, match=rf"energon-dali measure {path} --encoder tests.assembly.measured_encoders"):
        opened(path, encoders.Cooking())()
    results = measure(path, encoders.Cooking())
    assert [(result.path, result.num_measured) for result in results] == [
        (str(crude), 12),
        (str(crude), 12),
        (str(other), 6),
    ]
    lengths = [found.take("tokens", np.arange(3)).tolist() for found in opened(path, encoders.Cooking())()]
    assert lengths == [[24] * 3, [12] * 3, [12] * 3]


def test_estimates_stand_in_for_what_was_not_measured(tmp_path: Path) -> None:
    root = dataset(tmp_path / "data")
    open_now = opened(root, encoders.Letters())
    with pytest.raises(ConfigError, match="has no measures"):
        open_now()
    (estimates,) = open_now(allow_estimates=True)
    assert isinstance(estimates, EstimatedValues)
    assert estimates.take("text_tokens", np.arange(12)).tolist() == [3] * 12
    assert (estimates.take("vision_tokens", np.arange(12)) > 0).all()
    with pytest.raises(ConfigError, match="cannot be estimated"):
        estimates.take("vowels", np.arange(3))
    measure(root)
    assert not isinstance(open_now(allow_estimates=True)[0], EstimatedValues)


def test_estimates_know_what_prepare_media_has_described(tmp_path: Path) -> None:
    root = tmp_path / "data"
    files = {
        f"{number}.{part}": content for number in range(3) for part, content in (("mp4", b"v" * 3000), ("txt", b""))
    }
    write_tar(root / "0.tar", files)
    prepare_dataset(str(root))
    folder = WebdatasetFolder(str(root))
    plain = EstimatedValues(folder, part_kind).take("vision_tokens", np.arange(3))
    assert plain.tolist() == [2, 2, 2]
    facts = {"video_width": 280, "video_height": 280, "video_duration": 10.5}
    rows = [("0.mp4", "av", json.dumps(facts)), ("1.mp4", "av", json.dumps({**facts, "video_width": "wide"}))]
    with SqliteWriter(root / ".nv-meta" / "index.sqlite", samples=False, media=True) as table:
        table.add_media(rows)
    described = EstimatedValues(folder, part_kind).take("vision_tokens", np.arange(3))
    assert described.tolist() == [1050, 2, 2]


def part_kind(name: str) -> str:
    return find_part_kind(name)[0]


def kept(path: Path, encoder: Any, where: str) -> list[str]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    tree = get_train_dataset(
        str(path),
        worker_config=config,
        batch_size=1,
        task_encoder=encoder,
        repeat=False,
        subset={"where": where},
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with get_loader(tree) as loader:
        return sorted(key for batch in loader for key in batch.__key__)


def test_subsets_choose_samples_by_their_measures(tmp_path: Path) -> None:
    root = text_dataset(tmp_path / "data", range(4))
    encoder = text_encoder()
    with pytest.raises(ConfigError, match="has no measures"):
        kept(root, encoder, "tokens > 3")
    measure(root, encoder)
    assert kept(root, encoder, "1 < text_tokens and text_tokens <= 3 and vision_tokens == 0") == sorted(
        f"{shard}_{n}" for shard in range(4) for n in range(5) if shard + n in (2, 3)
    )
    with pytest.raises(ConfigError, match=r"no values named 'words'.*text_tokens"):
        kept(root, encoder, "words > 3")
    with pytest.raises(EnergonDaliError, match=r"no sample .* that fulfils where: tokens > 300\. `energon-dali info`"):
        get_train_dataset(str(root), task_encoder=encoder, subset={"where": "tokens > 300"})


def test_a_condition_in_a_metadataset_is_part_of_its_identity(tmp_path: Path) -> None:
    root = text_dataset(tmp_path / "data", range(4))
    encoder = text_encoder()
    measure(root, encoder)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    entry = {"path": str(root), "subset": {"range": ["50%", "100%"], "where": "tokens >= 5"}}
    meta = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": entry}}
    (tmp_path / "meta.yaml").write_text(json.dumps(meta))
    trees = [
        get_train_dataset(path, worker_config=config, batch_size=1, task_encoder=encoder)  # type: ignore[arg-type]
        for path in (
            str(tmp_path / "meta.yaml"),
            {**meta, "splits": {"train": {**entry, "subset": {"where": "tokens >= 5"}}}},
        )
    ]
    first, second = (json.dumps(tree.config()) for tree in trees)
    assert '"tokens >= 5"' in first
    assert '"tokens >= 5"' in second
    assert first != second
    measure(tmp_path / "meta.yaml", encoder, again=True)


PROGRAM = """
import os, random, signal, sys, time
from energon_dali.assembly import measuring
from tests.assembly import measured_encoders as encoders

root, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
measuring.CHUNK = 10

def run(path):
    return measuring.measure_datasets(path, encoders.Slow())

begin = time.monotonic()
run(sys.argv[4])
seconds = time.monotonic() - begin
draw = random.Random(seed)
for _ in range(kills):
    child = os.fork()
    if child == 0:
        try:
            run(root)
        except KeyboardInterrupt:
            os._exit(2)
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    time.sleep(draw.uniform(0, seconds / 2))
    os.kill(child, draw.choice((signal.SIGKILL, signal.SIGINT)))
    os.waitpid(child, 0)
(result,) = run(root)
print(result.num_measured)
"""


def interrupt(tmp_path: Path, kills: int, seed: int) -> None:
    root = dataset(tmp_path / "data", shards=5, samples=30)
    undisturbed = Path(shutil.copytree(root, tmp_path / "undisturbed"))
    program = [sys.executable, "-c", PROGRAM, str(root), str(kills), str(seed), str(undisturbed)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "150"
    assert files(root) == files(undisturbed)
    assert {path.name for path in root.rglob("*")} == {path.name for path in undisturbed.rglob("*")}
    assert list((tmp_path / "cache").rglob("*.chunks")) == []


def test_interrupted_at_any_moment_it_continues(tmp_path: Path) -> None:
    interrupt(tmp_path, 3, 1)


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_interrupted_twenty_times_it_continues(tmp_path: Path, seed: int) -> None:
    interrupt(tmp_path, 20, seed)


def test_an_interrupted_run_continues_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = dataset(tmp_path / "data")
    monkeypatch.setattr(measuring, "CHUNK", 2)

    done: list[Chunk] = []
    measure_chunk = MeasureJob.__call__

    def stop(job: MeasureJob, chunk: Chunk) -> Any:
        done.append(chunk)
        if len(done) == 4:
            raise KeyboardInterrupt
        return measure_chunk(job, chunk)

    monkeypatch.setattr(MeasureJob, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        measure(root)
    measure(root)
    assert [(chunk.shard, chunk.start) for chunk in done[4:]] == [(1, 2), (2, 0), (2, 2)]
    assert list((tmp_path / "cache").rglob("*.chunks")) == []
    assert list((root / ".nv-meta").glob("*energon-dali*")) == []


@pytest.mark.parametrize("first", [False, True], ids=["plain", "again"])
def test_measuring_again_takes_nothing_of_an_interrupted_run(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = text_dataset(tmp_path / "data", range(3))
    monkeypatch.setattr(measuring, "CHUNK", 2)
    scale = tmp_path / "scale"  # the fingerprint does not see what it holds
    scale.write_text("1")

    class Scaled(DefaultTaskEncoder[Any, Any, Any, Any]):
        def measure_sample(self, sample: Any) -> Any:
            number = scale.read_text()
            if sample.__key__ == "1_2" and number == "1":
                raise KeyboardInterrupt
            return {"text_tokens": len(sample.text) * int(number)}

    with pytest.raises(KeyboardInterrupt):
        measure(root, Scaled(), again=first)
    scale.write_text("2")
    measure(root, Scaled(), again=True)
    assert values(root, Scaled(), "text_tokens") == [0, 2, 4, 6, 8, 2, 4, 6, 8, 10, 4, 6, 8, 10, 12]
    assert list((tmp_path / "cache").rglob("*.chunks")) == []
