"""Datasets opened one by one and composed by hand: where they run, what they yield, and that they restore."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    Batch,
    CaptioningSample,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    batch_pad_stack,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.mixing.blend import BlendDataset, MixBatchDataset
from energon_dali.datasets.mixing.concatenation import concat_pad, homogeneous_concat_mix
from energon_dali.datasets.mixing.mixture_dataset import ConcatDataset
from energon_dali.datasets.worker_border import WorkerBorder, find_worker_borders
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.datasets.wrappers.gc import GcDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.loader.loader_state import merge_states
from energon_dali.loader.rank_pipeline import cut_tree, rank_has_work
from tests.loader.dataset_folder import captioning_dataset
from tests.loader.numbers_dataset import NumbersDataset, RankWorkDataset, tree
from tests.part import sampled
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")


@edataclass
class Captions(Batch):
    image: torch.Tensor
    caption: list[str]


@edataclass
class Images(Batch):
    image: torch.Tensor


class Captioning(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Images and captions."""

    @stateless
    def batch(self, samples: list[CaptioningSample]) -> Captions:
        return Captions.from_samples(samples, image=batch_pad_stack([sample.image for sample in samples]))


class ImagesOnly(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Images alone; some samples fail."""

    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        if sample.caption.endswith("7"):
            raise ValueError("seven")
        return sample

    @stateless
    def batch(self, samples: list[CaptioningSample]) -> Images:
        return Images.from_samples(samples, image=batch_pad_stack([sample.image for sample in samples]))


def with_decoder(encoder: Any, kind: str) -> Any:
    made = encoder()
    made.decoder = (
        SampleDecoder(image_decode="torchrgb8")
        if kind == "sample"
        else DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    )
    return made


DECODERS = {"sample": ("sample", "sample"), "dali": ("dali", "dali"), "both": ("dali", "sample")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("composing")
    return captioning_dataset(base / "a", count=22), captioning_dataset(base / "b", count=10)


def job(workers: int, streams: int = 2) -> WorkerConfig:
    return WorkerConfig(
        rank=0, world_size=1, num_workers=workers, num_streams=streams, global_error_handler=quiet, seed_offset=3
    )


def view(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, list):
        return tuple(map(view, batch))
    return type(batch).__name__, tuple(batch.__key__), batch.image.double().sum().item()


Build = Callable[[tuple[Path, Path], WorkerConfig, tuple[str, str]], SavableDataset[Any]]


def train(path: Path, config: WorkerConfig, encoder: Any, kind: str, **options: Any) -> SavableDataset[Any]:
    options = {"batch_size": 2, "shuffle_buffer_size": 10, "max_samples_per_sequence": 5, **options}
    return get_train_dataset(path, worker_config=config, task_encoder=with_decoder(encoder, kind), **options)


def val(path: Path, config: WorkerConfig, encoder: Any, kind: str, **options: Any) -> SavableDataset[Any]:
    task_encoder = with_decoder(encoder, kind)
    return get_val_dataset(path, worker_config=config, task_encoder=task_encoder, batch_size=3, **options)


def blend(folders: tuple[Path, Path], config: WorkerConfig, kinds: tuple[str, str]) -> SavableDataset[Any]:
    images = train(folders[0], config, ImagesOnly, kinds[0])
    captions = train(folders[1], config, Captioning, kinds[1])
    return EpochizeDataset(BlendDataset((images, 0.6), (captions, 0.4)), 11)


def mixed(folders: tuple[Path, Path], config: WorkerConfig, kinds: tuple[str, str]) -> SavableDataset[Any]:
    one = train(folders[0], config, Captioning, kinds[0], batch_size=1)
    two = train(folders[1], config, Captioning, kinds[1], batch_size=1)
    mix = MixBatchDataset((one, 6), (GcDataset(two), 4), batch_size=5, batch_mix_fn=homogeneous_concat_mix)
    return EpochizeDataset(mix, 5)


def validation(folders: tuple[Path, Path], config: WorkerConfig, kinds: tuple[str, str]) -> SavableDataset[Any]:
    return ConcatDataset(
        val(folders[0], config, ImagesOnly, kinds[0], limit=3), val(folders[1], config, Captioning, kinds[1])
    )


TREES: dict[str, Build] = {"blend": blend, "mixed": mixed, "validation": validation}
EPOCHS = 2


def run(dataset: SavableDataset[Any]) -> tuple[list[Any], list[Any]]:
    """Returns (contents of each batch, states before each), over some epochs."""
    got, states = [], []
    with get_savable_loader(dataset, start_method="fork") as batches:
        for _ in range(EPOCHS):
            states.append(batches.save_state_rank())
            for batch in batches:
                got.append(view(batch))
                states.append(batches.save_state_rank())
            got.append("end of epoch")
    return got, states


@pytest.mark.parametrize(("name", "kinds"), sampled(product(TREES, DECODERS), 2))
def test_every_number_of_workers_gives_the_same_and_restores_exactly(
    name: str, kinds: str, folders: tuple[Path, Path]
) -> None:
    build = TREES[name]
    expected, states = run(build(folders, job(0), DECODERS[kinds]))
    assert len(expected) > 10
    for workers in (1, 2):
        got, same = run(build(folders, job(workers), DECODERS[kinds]))
        assert got == expected
        assert [state["streams"] for state in same] == [state["streams"] for state in states]
    for taken in (1, len(expected) // 2, len(expected) - 3):
        state = json.loads(json.dumps(states[taken]))
        with get_savable_loader(build(folders, job(2 * (taken % 2)), DECODERS[kinds]), start_method="fork") as again:
            again.restore_state_rank(state)
            assert again.save_state_rank() == state
            rest = [*(view(batch) for batch in again), "end of epoch"]
            assert rest == expected[taken : taken + len(rest)]


def test_decoders_agree_on_what_a_blend_gives(folders: tuple[Path, Path]) -> None:
    whole = {kinds: run(blend(folders, job(0), DECODERS[kinds]))[0] for kinds in DECODERS}
    assert whole["sample"] == whole["dali"] == whole["both"]
    assert {entry[0] for entry in whole["both"] if entry != "end of epoch"} == {"Images", "Captions"}


def test_the_same_dataset_twice_has_two_orders_and_validation_keeps_file_order(folders: tuple[Path, Path]) -> None:
    config = job(0, streams=1)
    twice = BlendDataset(*((train(folders[0], config, Captioning, "sample", batch_size=1), 1) for _ in range(2)))
    orders: dict[int, list[str]] = {0: [], 1: []}
    with get_savable_loader(twice) as batches:
        for batch in islice(batches, 60):
            orders[batch.__restore_key__[1]] += batch.__key__
            again = batches.restore_sample(batch.__restore_key__) if len(orders[0]) % 10 == 1 else batch
            assert view(again) == view(batch)
    assert orders[0][:20] != orders[1][:20]
    for order in orders.values():
        assert len(set(order[:22])) == len(order[:22])
    with get_savable_loader(
        ConcatDataset(*(val(folder, config, Captioning, "sample") for folder in folders))
    ) as batches:
        keys = [key for batch in batches for key in batch.__key__]
    assert keys == [f"k{n:04d}" for n in range(22)] + [f"k{n:04d}" for n in range(10)]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_mixed_types_become_one_batch_by_a_function_of_the_users(start_method: str, folders: tuple[Path, Path]) -> None:
    def combine(batches: list[Any]) -> Any:
        captions = [text for batch in batches for text in getattr(batch, "caption", [])]
        return Captions.derive_from(batches[0], image=concat_pad([batch.image for batch in batches]), caption=captions)

    config = job(1, streams=1)
    images = train(folders[0], config, ImagesOnly, "dali" if start_method == "fork" else "sample", batch_size=1)
    captions = train(folders[1], config, Captioning, "sample", batch_size=1)
    mix = MixBatchDataset((images, 1), (captions, 1), batch_size=8, batch_mix_fn=combine)
    with get_savable_loader(mix, start_method=start_method) as batches:
        counts: Counter[int] = Counter()
        for batch in islice(batches, 6):
            assert batch.image.shape == (8, 3, 48, batch.image.shape[3])
            counts[len(batch.caption)] += 1
    assert max(counts) < 8
    assert min(counts) > 0


def parts(dataset: SavableDataset[Any]) -> list[str]:
    """Returns what workers run below each border of a cut tree: the name of its outermost dataset."""
    return [border.dataset.describe().split("(")[0] for border in find_worker_borders(cut_tree(dataset))]


def test_workers_run_all_that_needs_no_device(folders: tuple[Path, Path]) -> None:
    config = job(2)
    lifted = cut_tree(blend(folders, config, ("sample", "sample")))
    assert isinstance(lifted, EpochizeDataset)
    assert isinstance(lifted.dataset, WorkerBorder)
    assert lifted.dataset.decoder is None
    assert parts(lifted) == ["BlendDataset"]
    assert str(lifted).count("WorkerBorder") == 1
    assert not rank_has_work(lifted)

    halves = cut_tree(blend(folders, config, ("dali", "sample")))
    assert [border.number for border in find_worker_borders(halves)] == [0, 1]
    assert parts(halves) == ["SourceDataset", "BatchDataset"]
    assert rank_has_work(halves)
    for tree_ in (lifted, halves):
        assert str(cut_tree(tree_)) == str(tree_)
        assert cut_tree(tree_).config() == tree_.config()

    numbers = NumbersDataset([3, 3], config)
    assert parts(MapDataset(BatchDataset(tree(config, lengths=[3, 3]), 2, list), len)) == ["MapDataset"]
    assert parts(BlendDataset((RankWorkDataset(numbers), 1), (MapDataset(numbers, len), 1))) == [
        "NumbersDataset",
        "MapDataset",
    ]
    assert parts(LimitDataset(LimitDataset(numbers, 3), 2)) == ["LimitDataset"]


def test_a_global_state_of_a_blend_restores_onto_every_layout(folders: tuple[Path, Path]) -> None:
    def ranks(world: int, workers: int) -> Any:
        for rank in range(world):
            config = WorkerConfig(
                rank=rank, world_size=world, num_workers=workers, num_streams=6, global_error_handler=quiet
            )
            # One decodes in the rank, one in the workers; after it a blend that moves into them.
            encoders = ((folders[0], Captioning, "dali"), (folders[1], ImagesOnly, "sample"))
            one, two = (train(path, config, encoder, kind, batch_size=1) for path, encoder, kind in encoders)
            inner = BlendDataset((two, 1), (train(folders[0], config, Captioning, "sample", batch_size=1), 1))
            whole = MixBatchDataset((one, 1), (inner, 1), batch_size=2)
            with get_savable_loader(whole, start_method="fork") as batches:
                yield batches

    def taken(batches: Any, count: int) -> list[Any]:
        return [view(batch) for batch in islice(batches, count)]

    states = []
    for batches in ranks(3, 2):
        taken(batches, 4)
        states.append(batches.save_state_rank())
    state = json.loads(json.dumps(merge_states(states)))
    orders = []
    for world, workers in ((3, 2), (2, 3), (1, 6), (6, 1), (1, 0)):
        rows = []
        for batches in ranks(world, workers):
            batches.restore_state_global(state)
            rows.append(taken(batches, 18 // world))
        orders.append([batch for row in zip(*rows, strict=True) for batch in row])
    assert all(order == orders[0] for order in orders)
