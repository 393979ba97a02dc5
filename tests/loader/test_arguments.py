"""Wrong arguments are refused where they are given, in words."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali import (
    BlendDataset,
    Cooker,
    MapDataset,
    SampleDecoder,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.errors import ConfigError, DatasetFormatError, StateError
from energon_dali.samples import CaptioningSample
from tests.loader.dataset_folder import prepare, write_shards


class Builder(TaskEncoder[Any, Any, Any, Any]):
    """Plugs datasets together as task encoders of Energon may."""

    def build_batch(self, dataset: Any, **options: Any) -> Any:
        return dataset


class Bytes(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"txt": b"text", "json": b"{}"} for number in range(12)}
    return prepare(write_shards(tmp_path_factory.mktemp("arguments"), samples), {"text": "txt"}, "TextSample")


class Packing(Bytes):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return [sample.__key__ for sample in samples]

    def batch(self, samples: list[Any]) -> Any:
        return [sample if isinstance(sample, list) else sample.__key__ for sample in samples]


class Grouped(Bytes):
    def batch_group_criterion(self, sample: Any) -> Any:
        return sample.__key__


def config(**options: Any) -> WorkerConfig:
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": 0, "num_streams": 2, **options})


def train(folder: Any, **options: Any) -> Any:
    return get_train_dataset(folder, **{"batch_size": 2, "worker_config": config(), "task_encoder": Bytes(), **options})


def val(folder: Any, **options: Any) -> Any:
    return get_val_dataset(folder, **{"batch_size": 2, "worker_config": config(), "task_encoder": Bytes(), **options})


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (train, "batch_size", 0),
        (train, "batch_size", "8"),
        (train, "batch_size", 2.0),
        (train, "batch_size", True),
        (train, "shuffle_buffer_size", -1),
        (train, "shuffle_buffer_size", "x"),
        (train, "max_samples_per_sequence", 1.5),
        (train, "max_samples_per_sequence", 0),
        (train, "virtual_epoch_length", -1),
        (train, "virtual_epoch_length", None),
        (train, "shuffle_over_epochs_multiplier", 1.5),
        (train, "parallel_shard_iters", 0),
        (train, "packing_buffer_size", 0),
        (val, "batch_size", 0),
        (val, "limit", 1.5),
        (val, "limit", 0),
    ],
)
def test_sizes_are_whole_numbers_in_their_range(
    make: Callable[..., Any], name: str, value: object, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value!r} is invalid: {name} must be a whole number of at least"):
        make(folder, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_encoder": Bytes}, "write parentheses after the class"),
        ({"task_encoder": object()}, "is not an instance of energon_dali.TaskEncoder"),
        ({"task_encoder": Builder()}, "Builder defines build_batch, but no hook of that name is called"),
        ({"worker_config": 4}, "worker_config=4 is not a WorkerConfig"),
        ({"sample_type": "TextSample"}, "sample_type='TextSample' is invalid: give a class"),
        ({"field_map": "txt"}, "field_map='txt' is invalid: give a dict"),
        ({"subflavors": 3}, "subflavors=3 is invalid: give a dict"),
        ({"part_filter": 3}, "part_filter=3 is invalid: give a function"),
        ({"bogus": 3}, "has no argument 'bogus'. It takes"),
    ],
)
def test_other_arguments_say_what_they_want(options: dict[str, Any], message: str, folder: Path) -> None:
    for make in (train, val):
        with pytest.raises(ConfigError, match=message):
            make(folder, **options)


def test_one_encoder_packs_where_a_buffer_is_given_and_else_does_not(folder: Path) -> None:
    stages = {
        "split_part": "train",
        "task_encoder": Packing(),
        "worker_config": config(num_streams=1),
        "batch_size": 12,
    }
    assert list(val(folder, **stages)) == [[f"k{number}" for number in range(12)]]
    packed = list(val(folder, **stages, packing_buffer_size=6))
    assert packed == [[[f"k{number}" for number in range(first, first + 6)] for first in (0, 6)]]


def test_a_group_criterion_that_gives_no_pair_is_told_so_at_once(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_group_criterion returned 'k\d+'. Return a pair, such as \(key"):
        next(iter(train(folder, task_encoder=Grouped())))


@pytest.mark.parametrize("path", ["", None, 3, b"/tmp"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="is not the path of a dataset"):
        train(path)


def test_a_part_filter_may_be_a_list(folder: Path) -> None:
    assert next(iter(train(folder, part_filter=["txt"], batch_size=None))).text == b"text"


def test_a_crude_dataset_names_the_parts_that_cookers_get(folder: Path) -> None:
    class Cooked(Bytes):
        cookers = (Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text=",".join(sample))),)

    (folder / ".nv-meta" / "crude.yaml").write_text("__class__: CrudeWebdataset\npart_filter: [json]\n")
    sample = next(iter(val(folder, dataset_config="crude.yaml", batch_size=None, task_encoder=Cooked())))
    assert "json" in sample.text
    assert "txt" not in sample.text
    assert sample.__sources__[0].file_names == ("k0.json",)


@pytest.mark.parametrize("make", [train, val])
def test_a_field_map_that_does_not_fit_the_class_is_refused_before_any_sample(make: Any, folder: Path) -> None:
    with pytest.raises(DatasetFormatError, match=r"unknown fields \['word'\] and lacks \['text'\]"):
        make(folder, field_map={"word": "txt"})
    with pytest.raises(DatasetFormatError, match=r"field_map in dataset.yaml of .* does not fit CaptioningSample"):
        make(folder, sample_type=CaptioningSample)


@pytest.mark.parametrize("make", [get_train_dataset, get_val_dataset])
def test_warnings_of_old_arguments_name_the_users_line(make: Any, folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # files that writers left open: the collector says so whenever it comes
        warnings.simplefilter("always", DeprecationWarning)
        make(folder, batch_size=2, worker_config=config(), image_decode="torchrgb", handler=print)
    assert [(Path(w.filename).name, w.category) for w in caught] == [(Path(__file__).name, DeprecationWarning)] * 2


@pytest.mark.parametrize("options", [{"rank": "0"}, {"num_workers": 1.0}, {"num_streams": "4"}, {"seed_offset": None}])
def test_a_worker_config_holds_whole_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not a whole number: give an int"):
        config(**options)


def test_numbers_of_numpy_are_the_same_numbers(folder: Path) -> None:
    loader = get_savable_loader(train(folder, batch_size=np.int64(2), worker_config=config(num_streams=np.int32(2))))
    next(iter(loader))
    restored = get_savable_loader(train(folder))
    restored.restore_state_rank(loader.save_state_rank())
    assert next(iter(restored)).__key__ == next(iter(loader)).__key__


def test_a_loader_wants_a_dataset(folder: Path) -> None:
    loader = get_savable_loader(train(folder))
    for wrong in ([1, 2], loader):
        with pytest.raises(ConfigError, match="is not a dataset of energon_dali"):
            get_savable_loader(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_says_that_it_cannot_be_copied(make_copy: Callable[[Any], Any], folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be copied or pickled.*Copy its dataset"):
        make_copy(get_savable_loader(train(folder)))


@pytest.mark.parametrize(
    "damage",
    [
        {"streams": None},
        {"given": None},
        {"config": None},
        {"config": "zzz"},
        {"streams": {"0": {}, "1": {}}},
        {"num_streams": "2"},
        {"given": {"0": "a"}},
        {"streams": {"0": {"count": "a", "ended": False, "state": {}}}},
    ],
)
def test_a_damaged_state_is_named_so(damage: dict[str, Any], folder: Path) -> None:
    state = {**get_savable_loader(train(folder)).save_state_rank(), **damage}
    for restore in ("restore_state_rank", "restore_state_global", "load_state_dict"):
        with pytest.raises(StateError, match="The state is damaged"):
            getattr(get_savable_loader(train(folder)), restore)(state)
    with pytest.raises(StateError, match=r"not a loader state .int."):
        get_savable_loader(train(folder)).restore_state_global(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("inner", [{}, {"inner": 3}, {"inner": {"inner": []}}, {"given": "a", "ended": []}])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_is_damaged_inside_is_named_so(inner: dict[str, Any], workers: int, folder: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)

    def loader() -> Any:
        return get_savable_loader(train(folder, worker_config=config), start_method="fork")

    with loader() as good:
        next(iter(good))
        state = good.save_state_rank()
    state["streams"]["0"]["state"] = inner
    with loader() as other:
        other.restore_state_rank(state)
        with pytest.raises(StateError, match="The state of stream 0 is damaged"):
            next(iter(other))


def test_a_state_of_another_tree_says_where_it_differs(folder: Path) -> None:
    state = get_savable_loader(train(folder, batch_size=2)).save_state_rank()
    other = get_savable_loader(MapDataset(train(folder, batch_size=2), list))
    with pytest.raises(StateError, match=r"outermost dataset was BatchDataset, is MapDataset\. Build the loader"):
        other.restore_state_rank(state)
    blends = [get_savable_loader(BlendDataset(*[(train(folder, batch_size=2), 1)] * count)) for count in (2, 3)]
    with pytest.raises(StateError, match=r"was a list of 2 datasets, is a list of 3 datasets; .*weights was \[1\.0, 1"):
        blends[1].restore_state_rank(blends[0].save_state_rank())


@pytest.mark.parametrize("decoder", [SampleDecoder, "pil", False])
def test_a_decoder_is_an_instance(decoder: Any, folder: Path) -> None:
    encoder = Bytes()
    encoder.decoder = decoder
    with pytest.raises(ConfigError, match=r"Bytes.decoder is .* which is not a decoder. Give an instance"):
        train(folder, task_encoder=encoder)


def test_threads_that_share_a_loader_take_turns(folder: Path) -> None:
    def run(loader: Any) -> list[str]:
        return [sample.__key__ for sample in islice(loader, 4)]

    with (
        get_savable_loader(val(folder, batch_size=None, worker_config=config(num_workers=1))) as loader,
        ThreadPoolExecutor(3) as threads,
    ):
        found = [key for keys in threads.map(run, [loader] * 3) for key in keys]
    assert sorted(found) == sorted(f"k{number}" for number in range(12))
