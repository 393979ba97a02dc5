"""feed="native" delivers what blocks deliver, if the order is made of runs."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    ConfigError,
    DaliDecoder,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.cli.media_options import check_image
from energon_dali.decode import HorizontalFlip, RandomResizedCrop
from energon_dali.shards import prepare_dataset
from tests.loader.dataset_folder import FIELD_MAP, captioning_sample, picture, write_shards
from tests.loader.test_bad_files import BAD, bad_files
from tests.photographs import full_photograph
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

OPERATIONS = (RandomResizedCrop(20), HorizontalFlip(0.5))


class Block(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=OPERATIONS, image_decode_device="cpu")


class Native(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=OPERATIONS, image_decode_device="cpu", feed="native")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a dataset with bad files and with images that only PIL decodes, prepared with the header check."""
    folder = tmp_path_factory.mktemp("native")
    samples = {f"k{n:04d}": captioning_sample(n) for n in range(200)}
    for number, content in zip(BAD, bad_files(), strict=True):
        samples[f"k{number:04d}"] = {"jpg": content, "txt": b"bad", "json": b"{}"}
    gif = folder / "picture.gif"
    full_photograph("china").crop((0, 0, 64, 48)).save(gif)
    samples["k0010"] = {"png": gif.read_bytes(), "txt": b"picture number 10", "json": b"{}"}
    samples["k0011"] = {"txt": b"picture number 11", "json": b"{}", "jpg": picture(11)}
    write_shards(folder, samples)
    prepare_dataset(str(folder), split_patterns=[("train", ".*"), ("val", ".*")], check_part=check_image)
    config = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": FIELD_MAP,
    }
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    return folder


def make_loader(folder: Path, encoder: type[Any], num_workers: int = 0, streams: int = 2, **kwargs: Any) -> Any:
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=num_workers, num_streams=streams, seed_offset=3, global_error_handler=quiet
    )
    options = {"batch_size": 8, "parallel_shard_iters": 1, "max_samples_per_sequence": 20, **kwargs}
    return get_savable_loader(get_train_dataset(folder, worker_config=config, task_encoder=encoder(), **options))


def view(batch: Any) -> tuple[Any, ...]:
    return list(batch.__key__), list(batch.caption), batch.image.sum(dim=(1, 2, 3)).tolist(), batch.__restore_key__


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_both_feeds_give_the_same_batches(folder: Path, num_workers: int, window: int | None) -> None:
    options = {"shuffle_buffer_size": window, "window_in_slice": window is not None}
    batches = []
    for encoder in (Block, Native):
        with make_loader(folder, encoder, num_workers, **options) as loader:
            batches.append([view(batch) for batch in islice(loader, 60)])
            failed = {failure["key"] for failure in loader.stats()["failures"]}
            assert failed == {f"k{n:04d}" for n in BAD}
    assert batches[0] == batches[1]


def test_a_restore_after_every_batch_continues_exactly(folder: Path) -> None:
    loader = make_loader(folder, Native)
    states, batches = [], []
    for batch in islice(iter(loader), 30):
        batches.append(view(batch))
        states.append(json.loads(json.dumps(loader.save_state_rank())))
    for place in (0, 1, 7, 12, 13, 22, 28):
        restored = make_loader(folder, Native)
        restored.restore_state_rank(states[place])
        assert [view(batch) for batch in islice(iter(restored), 29 - place)] == batches[place + 1 :]


def test_both_feeds_leave_out_the_same_steps(folder: Path) -> None:
    with make_loader(folder, Block) as loader:
        expected = [view(batch) for batch in islice(loader, 30)]
    keys = []
    for encoder in (Block, Native):
        for by in ("run", "plan"):
            with make_loader(folder, encoder) as loader:
                loader.skip_steps(5, 23, by=by)
                batches = [view(batch) for batch in islice(loader, 12)]
                assert batches[:5] == expected[:5]
                keys.append([batch[0] for batch in batches])
                if by == "run":  # samples of the range fail, which a plan cannot know
                    assert batches == expected[:5] + expected[23:]
    assert keys[0] == keys[2]
    assert keys[1] == keys[3]


def test_validation_gives_every_good_sample_once(folder: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=quiet)
    dataset = get_val_dataset(folder, batch_size=9, worker_config=config, task_encoder=Native())
    for _ in range(2):
        keys = [key for batch in dataset for key in batch.__key__]
        assert keys == [f"k{n:04d}" for n in range(200) if n not in BAD]


def test_an_order_that_is_not_made_of_runs_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="set parallel_shard_iters=1") as refused:
        make_loader(folder, Native, parallel_shard_iters=4)
    assert "shuffle_buffer_size" not in str(refused.value)
    with pytest.raises(ConfigError, match="set window_in_slice=True") as refused:
        make_loader(folder, Native, shuffle_buffer_size=50)
    assert "parallel_shard_iters" not in str(refused.value)
    with pytest.raises(ConfigError, match="parallel_shard_iters=16, the default of training"):
        make_loader(folder, Native, parallel_shard_iters=None)


def test_what_is_refused_does_not_depend_on_how_many_slices_a_stream_has(folder: Path) -> None:
    for streams in (1, 2, 30):
        with pytest.raises(ConfigError, match="set parallel_shard_iters=1"):
            make_loader(folder, Native, streams=streams, parallel_shard_iters=2, max_samples_per_sequence=None)


def test_a_dataset_that_is_repeated_in_an_epoch_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    document = tmp_path / "twice.yaml"
    document.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend_epochized:\n"
        f"      - {{path: {folder}, repetitions: 2}}\n"
    )
    with pytest.raises(ConfigError, match=r'repeated by blend_epochized; feed="native".*Use feed="block"'):
        make_loader(document, Native)


# 11 and 12: around the end of the first epoch of a stream.
@pytest.mark.parametrize("places", [(5, 12), pytest.param((0, 5, 11, 12, 25), marks=pytest.mark.sweep)], ids=len)
@pytest.mark.parametrize("window", [None, 7])
def test_a_state_of_one_feed_continues_with_the_other(
    folder: Path, window: int | None, places: tuple[int, ...]
) -> None:
    options = {"shuffle_buffer_size": window, "window_in_slice": window is not None}
    for saver, other in ((Block, Native), (Native, Block)):
        loader = make_loader(folder, saver, **options)
        states, batches = [], []
        for batch in islice(iter(loader), 30):
            batches.append(view(batch))
            states.append(json.loads(json.dumps(loader.save_state_rank())))
        for place in places:
            restored = make_loader(folder, other, **options)
            restored.restore_state_rank(states[place])
            assert json.loads(json.dumps(restored.save_state_rank())) == states[place]
            found = [view(batch) for batch in islice(iter(restored), 29 - place)]
            assert found == batches[place + 1 :], f"{saver.__name__} to {other.__name__} after batch {place}"


def test_a_dataset_without_the_header_check_is_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / ".nv-meta" / "extents.bin").unlink()
    with pytest.raises(ConfigError, match="energon-dali prepare"):
        make_loader(copy, Native)
