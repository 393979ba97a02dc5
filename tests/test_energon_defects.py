"""Defects of Energon 7.4.1 that this package does not have: one test for each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from energon_dali import (
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    EpochizeDataset,
    FileStoreCachePool,
    SampleDecoder,
    SkipSample,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    prepare_metadataset,
    reraise_exception,
    stateless,
)
from energon_dali.cache import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from energon_dali.cli.main import main
from energon_dali.errors import ConfigError, DatasetFormatError, DecodeError
from energon_dali.shards import ShardReader, WebdatasetFolder, prepare_jsonl
from energon_dali.shards.storage.local import LocalBackend
from tests.datasets.oracle import Counting, check_resume, config
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards

COUNT = 24


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("defects") / "texts", range(COUNT))


def write_texts(folder: Path, numbers: Any) -> Path:
    samples = {f"k{number:02d}": {"txt": str(number).encode(), "json": b"{}"} for number in numbers}
    return prepare(write_shards(folder, samples, 3), {"text": "txt"}, "TextSample")


def job(rank: int = 0, world_size: int = 1, workers: int = 0, streams: int = 2) -> WorkerConfig:
    return WorkerConfig(rank=rank, world_size=world_size, num_workers=workers, num_streams=streams)


class Drawing(TaskEncoder[Any, Any, Any, Any]):
    """Adds a random number to every sample."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: TextSample) -> TextSample:
        return TextSample.derive_from(sample, text=f"{sample.text} {random.random()}")


def test_1_restored_seeds_are_those_of_the_sample_in_whatever_process(texts: Path) -> None:
    def loader(rank: int, workers: int) -> Any:
        dataset = get_train_dataset(texts, worker_config=job(rank, 2, workers, 4), task_encoder=Drawing())
        return get_savable_loader(dataset, start_method="fork")

    drawn = {}
    for rank in (0, 1):  # rank 1 runs hooks in a process and forks another, in which rank 0's hooks have run
        with loader(rank, 0) as here, loader(rank, 2) as forked:
            drawn[rank] = list(islice(here, 8))
            assert [sample.text for sample in islice(forked, 8)] == [sample.text for sample in drawn[rank]]
    assert len({sample.text.split()[1] for samples in drawn.values() for sample in samples}) == 16
    with loader(0, 0) as again:
        for sample in drawn[0]:
            assert again.restore_sample(sample.__restore_key__).text == sample.text


@pytest.fixture(scope="module")
def joined(texts: Path) -> Path:
    """A join of 24 samples, of which 16 have a match."""
    write_texts(texts.parent / "others", range(16))
    file = texts.parent / "join.yaml"
    rows = "    - {path: texts}\n    - {path: others, nonmatch: none}\n"
    joiner = f"{{__module__: {__name__}, __function__: join_texts}}"
    file.write_text(f"__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n{rows}    joiner: {joiner}\n")
    prepare_metadataset(file)
    return file


def join_texts(left: TextSample, right: TextSample | None) -> TextSample:
    return TextSample.derive_from(left, text=f"{left.text}+{right and right.text}")


class Packing(TaskEncoder[Any, Any, Any, Any]):
    """Packs pairs; every pack yields two elements."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> Iterator[TextSample]:
        for number in range(2):
            yield TextSample.derive_from(samples[0], text=f"{number}: {' '.join(s.text for s in samples)}")


def test_2_joined_samples_restore_out_of_buffers_and_by_their_keys(joined: Path) -> None:
    def make() -> Any:
        return get_train_dataset(
            joined,
            worker_config=job(),
            shuffle_buffer_size=5,
            packing_buffer_size=4,
            task_encoder=Packing(),
            allow_imports=True,
        )

    check_resume(make, count=14, view=lambda sample: sample.text)
    tree = make()
    for sample in islice(tree, 6):
        assert tree.restore_sample(sample.__restore_key__).text == sample.text


def test_3_what_has_no_match_is_joined_with_none(joined: Path) -> None:
    dataset = get_val_dataset(joined, split_part="train", worker_config=job(streams=1), allow_imports=True)
    assert [s.text for s in dataset] == [f"{n}+{n if n < 16 else None}" for n in range(COUNT)]


class Grouping(TaskEncoder[Any, Any, Any, Any]):
    """Groups by the first digit; some samples have no group."""

    def batch_group_criterion(self, sample: TextSample) -> tuple[str, int | None]:
        if sample.text in ("7", "12"):
            raise SkipSample
        return sample.text[0], None

    @stateless
    def batch(self, samples: list[TextSample]) -> TextSample:
        return TextSample.derive_from(samples[0], text=" ".join(sample.text for sample in samples))


def test_4_a_skip_in_the_group_criterion_drops_that_sample_alone(texts: Path) -> None:
    dataset = get_val_dataset(texts, worker_config=job(), batch_size=4, task_encoder=Grouping())
    batches = [batch.text.split() for batch in dataset]
    assert sorted(int(text) for batch in batches for text in batch) == [n for n in range(COUNT) if n not in (7, 12)]
    assert all(len({text[0] for text in batch}) == 1 for batch in batches)


def test_5_groups_of_a_task_encoder_can_be_made_again(texts: Path) -> None:
    dataset = get_val_dataset(texts, worker_config=job(), batch_size=3, task_encoder=Grouping())
    dataset.assert_can_restore()
    for batch in dataset:
        assert dataset.restore_sample(batch.__restore_key__).text == batch.text


def test_6_no_virtual_epoch_is_empty(texts: Path) -> None:
    finite = get_train_dataset(texts, worker_config=job(), batch_size=None, repeat=False)
    with get_loader(EpochizeDataset(finite, 10)) as loader:
        assert [len(list(loader)) for _ in range(6)] == [
            10,
            10,
            4,
        ] * 2  # the epoch ends with the data, which start again
    even = EpochizeDataset(Counting(10, config(1)), 5)
    assert [len(list(even)) for _ in range(6)] == [5] * 6


@stateless
@cooker(need_cache=True, need_primary=True)
def cook(sample: dict[str, Any], cache: Any, primary: Any) -> TextSample:
    lazy = cache.get_lazy(primary, f"{sample['__key__']}.txt")
    return TextSample(**basic_sample_keys(sample), text=f"{sample['txt']} {lazy.get(sample)}")


class Cooking(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook),)
    decoder = SampleDecoder()

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        cached = self.cache.to_cache(sample.text, f"{sample.__key__}.copy")
        return TextSample.derive_from(sample, text=cached.get())


@pytest.fixture(scope="module")
def crude(texts: Path) -> Path:
    folder = write_texts(texts.parent / "crude", range(COUNT))
    (folder / ".nv-meta" / "dataset.yaml").write_text("__class__: CrudeWebdataset\n")
    return folder


@pytest.mark.parametrize("pool", [False, True])
def test_7_hooks_have_a_cache_without_a_pool_and_where_a_sample_is_made_again(
    crude: Path, pool: bool, tmp_path: Path
) -> None:
    dataset = get_train_dataset(
        crude, worker_config=job(workers=2), batch_size=None, repeat=False, task_encoder=Cooking()
    )
    cache = FileStoreCachePool(parent_cache_dir=tmp_path, num_workers=1) if pool else None
    with get_savable_loader(dataset, start_method="fork", cache_pool=cache) as loader:
        samples = list(loader)
        assert sorted(sample.text for sample in samples) == sorted(f"{n} {n}" for n in range(COUNT))
        for sample in samples[:4]:
            assert loader.restore_sample(sample.__restore_key__).text == sample.text
    if cache is not None:
        cache.close()


def test_8_media_are_described_by_glob_on_the_command_line(tmp_path: Path) -> None:
    folder = captioning_dataset(tmp_path / "captions", 8, 2)
    call = ["prepare-media", str(folder), "--media-metadata-by-glob", "*.jpg,*.png", "--no-progress"]
    done = CliRunner().invoke(main, call)
    assert (done.exit_code, done.output) == (0, "Done. Described 6 media.\n")
    assert WebdatasetFileStore(folder).get_media_metadata("k0000.jpg").width == 64


def test_9_a_reference_gives_the_data_at_every_call(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"content")
    pool = FileStoreCachePool(parent_cache_dir=tmp_path / "cache", num_workers=1)
    for method in (pool.get_lazy(SystemFileStore(tmp_path), "a.bin"), pool.to_cache(b"content", "copy")):
        assert [method.get() for _ in range(3)] == [b"content"] * 3
    pool.close()


def test_10_the_outputs_of_a_pack_are_not_lost_where_a_state_was_saved_between_them(texts: Path) -> None:
    def make() -> Any:
        return get_train_dataset(
            texts, worker_config=job(), packing_buffer_size=6, task_encoder=Packing(), repeat=False
        )

    outputs = [sample.text for sample in make()]
    assert len(outputs) == COUNT
    assert sum(text.startswith("1:") for text in outputs) == COUNT / 2
    check_resume(make, count=2 * COUNT, epochs=2, view=lambda sample: sample.text)


@pytest.mark.parametrize("decoder", [SampleDecoder(), DaliDecoder(image_decode_device="cpu")], ids=["pil", "dali"])
def test_11_a_decode_error_ends_a_run_that_is_told_to_end_at_errors(decoder: Any, tmp_path: Path) -> None:
    samples = {f"k{number}": {"jpg": b"not an image", "txt": b"text"} for number in range(4)}
    folder = prepare(write_shards(tmp_path / "broken", samples, 1))

    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        pass

    Encoder.decoder = decoder
    strict = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
    loader = get_loader(get_val_dataset(folder, worker_config=strict, task_encoder=Encoder()))
    with pytest.raises(DecodeError):
        next(iter(loader))
    with pytest.warns(DeprecationWarning, match="handler is ignored: set WorkerConfig"):
        get_val_dataset(folder, worker_config=strict, handler=reraise_exception)


def test_12_crude_data_without_a_cooker_is_refused_lines_need_no_suffix_and_nothing_is_printed(
    crude: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for make in (get_train_dataset, get_val_dataset):
        with pytest.raises(ConfigError, match="cooker"):
            make(crude, worker_config=job(), task_encoder=Drawing())
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"n": {number}}}\n' for number in range(9)))
    prepare_jsonl(str(lines))
    store = JsonlFileStore(lines)
    assert store["5"] == store["5.json"]
    assert json.loads(store["5"][0]) == {"n": 5}

    class Lines(DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (Cooker(cook_line),)

    assert len(list(get_val_dataset(lines, split_part="train", worker_config=job(), task_encoder=Lines()))) == 9
    assert capfd.readouterr() == ("", "")


@stateless
def cook_line(sample: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=str(sample["json"]))


@pytest.mark.parametrize("suffix", ["tgz", "tar.gz"])
def test_13_compressed_shards_are_refused_when_they_are_prepared(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"shard_0.{suffix}").write_bytes(b"\x1f\x8b")
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), "--non-interactive", "--split-ratio", "1,0,0"])
    assert done.exit_code != 0
    assert f"compressed shards, such as shard_0.{suffix}" in done.output


def test_14_the_shard_that_was_used_last_stays_open(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_file = LocalBackend.open
    monkeypatch.setattr(
        LocalBackend, "open", lambda self, url, *size: (opened.append(Path(url).name), open_file(self, url, *size))[1]
    )
    reader = ShardReader(WebdatasetFolder(str(texts)), max_open_shards=2)
    for shard in (0, 1, 0, 2, 0):
        reader.read([shard], [0])
    assert [name for name in opened if name.endswith(".tar")] == [f"shard_{shard:03d}.tar" for shard in (0, 1, 2)]
    reader.close()
    with pytest.raises(DatasetFormatError):
        WebdatasetFolder(str(texts.parent))
