"""The options of datasets: invalid ones are refused where they are given, with what is allowed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from energon_dali import (
    Cooker,
    SampleDecoder,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.assembly.options import DatasetOptions
from energon_dali.errors import ConfigError, DatasetFormatError, StorageError
from energon_dali.samples.kinds import CaptioningSample
from energon_dali.shards import StoragePath, prepare_dataset, prepare_jsonl
from tests.loader.dataset_folder import prepare, write_shards


class Bytes(TaskEncoder[Any, Any, Any, Any]):
    decoder = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {f"k{number}": {"txt": b"text", "json": b"{}"} for number in range(12)}
    return prepare(write_shards(tmp_path_factory.mktemp("arguments"), samples), {"text": "txt"}, "TextSample")


@dataclass
class Plain:
    """Not a sample: it has no key."""

    text: str


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
        (val, "limit", -1),
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
        ({"worker_config": 4}, "worker_config=4 is not a WorkerConfig"),
        ({"sample_type": "TextSample"}, "sample_type='TextSample' is invalid: give a class"),
        ({"sample_type": int}, r"sample_type=<class 'int'> cannot make samples: it does not take __key__.*CrudeSample"),
        ({"sample_type": Plain, "field_map": {"text": "txt"}}, "sample_type=.*Plain'> cannot make samples"),
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


def test_any_class_that_takes_the_fields_makes_samples(folder: Path) -> None:
    for kind in (dict, SimpleNamespace):
        loaded = next(iter(train(folder, sample_type=kind, task_encoder=Packing(), batch_size=None)))
        assert isinstance(loaded, kind)


def test_the_sample_type_of_dataset_yaml_makes_samples(tmp_path: Path) -> None:
    folder = prepare(
        write_shards(tmp_path, {f"k{number}": {"txt": b"text"} for number in range(3)}), {"text": "txt"}, "TextSample"
    )
    document = folder / ".nv-meta" / "dataset.yaml"
    named = {"__module__": "builtins", "__class__": "int"}
    document.write_text(json.dumps({**yaml.safe_load(document.read_text()), "sample_type": named}))
    with pytest.raises(DatasetFormatError, match=r"names the sample type builtins\.int, which cannot make samples"):
        train(folder, allow_imports=True)


@pytest.mark.parametrize(("name", "kind"), [("share_group", "ShareGroup"), ("delivery", "Delivery")])
def test_what_ranks_share_is_made_by_from_mesh(name: str, kind: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{name}=1 is invalid: it must be a {kind}, or None\. WorkerConfig\.from_mesh"
    ):
        config(**{name: 1})


def test_one_encoder_packs_only_with_a_packing_buffer(folder: Path) -> None:
    stages = {
        "split_part": "train",
        "task_encoder": Packing(),
        "worker_config": config(num_streams=1),
        "batch_size": 12,
    }
    assert list(val(folder, **stages)) == [[f"k{number}" for number in range(12)]]
    packed = list(val(folder, **stages, packing_buffer_size=6))
    assert packed == [[[f"k{number}" for number in range(first, first + 6)] for first in (0, 6)]]


def test_a_limit_of_0_is_no_limit(folder: Path) -> None:
    whole = list(val(folder, task_encoder=Packing()))
    assert len(whole) > 2
    assert list(val(folder, task_encoder=Packing(), limit=0)) == whole
    assert len(list(val(folder, task_encoder=Packing(), limit=2))) == 2


def test_a_group_criterion_must_return_a_pair(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_group_criterion returned 'k\d+'. Return a pair, such as \(key"):
        next(iter(train(folder, task_encoder=Grouped())))


@pytest.mark.parametrize("path", ["", None, 3, b"/tmp"])
def test_an_invalid_path_is_refused(path: Any) -> None:
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
def test_a_field_map_is_refused_where_samples_are_crude(make: Any, folder: Path, tmp_path: Path) -> None:
    (folder / ".nv-meta" / "crude.yaml").write_text("__class__: CrudeWebdataset\n")
    fields = {"text": "txt"}
    with pytest.raises(ConfigError, match=r"field_map=\{'text': 'txt'\} .* crude.*Leave it out.*give sample_type="):
        make(folder, dataset_config="crude.yaml", field_map=fields)
    assert make(folder, dataset_config="crude.yaml", field_map=fields, sample_type=TextSample)
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n')
    prepare_jsonl(str(tmp_path / "lines.jsonl"))
    with pytest.raises(ConfigError, match=r"JSONL file, whose samples are crude, and field_map=.*Leave it out"):
        make(tmp_path / "lines.jsonl", field_map=fields)


def test_subflavors_of_dataset_yaml_stay_with_another_type_and_fields(folder: Path) -> None:
    document = folder / ".nv-meta" / "other.yaml"
    document.write_text("{__module__: my.code, __class__: Own, subflavors: {of: file, kept: 1}}")
    made = {"dataset_config": "other.yaml", "sample_type": TextSample, "field_map": {"text": "txt"}}
    sample = next(iter(val(folder, **made, subflavors={"of": "call"}, batch_size=None)))
    assert sample.__subflavors__ == {"of": "call", "kept": 1}
    document.write_text("subflavors: 3")
    with pytest.raises(DatasetFormatError, match=r"subflavors=3, and they should be a mapping"):
        val(folder, **made)
    document.unlink()
    assert next(iter(val(folder, **made, batch_size=None))).__subflavors__ == {}


@pytest.mark.parametrize("make", [train, val])
def test_a_field_map_that_does_not_fit_the_class_is_refused_before_any_sample(make: Any, folder: Path) -> None:
    with pytest.raises(DatasetFormatError, match=r"unknown fields \['word'\] and lacks \['text'\]"):
        make(folder, field_map={"word": "txt"})
    with pytest.raises(DatasetFormatError, match=r"field_map in dataset.yaml of .* does not fit CaptioningSample"):
        make(folder, sample_type=CaptioningSample)


@pytest.mark.parametrize("make", [get_train_dataset, get_val_dataset])
def test_warnings_of_old_arguments_name_the_users_line(make: Any, folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # files that writers left open, reported by the garbage collector at any time
        warnings.simplefilter("always", DeprecationWarning)
        make(folder, batch_size=2, worker_config=config(), image_decode="torchrgb", handler=print)
    assert [(Path(w.filename).name, w.category) for w in caught] == [(Path(__file__).name, DeprecationWarning)] * 2


class Images(TaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="pil")


class Default(TaskEncoder[Any, Any, Any, Any]):
    pass


def with_old(encoder: Any, **old: Any) -> Any:
    """Returns the encoder that a dataset has after a call with deprecated options."""
    with pytest.warns(DeprecationWarning, match=f"{', '.join(old)} as arguments of the dataset are deprecated"):
        return DatasetOptions.of_call(encoder, config(), old, training=True, split_part="train").encoder


@pytest.mark.parametrize(
    ("name", "value"),
    [("image_decode", "pil"), ("av_decode", "torch"), ("video_decode_audio", True), ("guess_content", True)],
)
def test_an_old_option_makes_a_decoder(name: str, value: Any) -> None:
    encoder = Default()
    assert with_old(encoder, **{name: value}).decoder.config() == SampleDecoder(**{name: value}).config()
    assert encoder.decoder is TaskEncoder.decoder


def test_old_options_may_repeat_the_decoder_and_not_replace_it() -> None:
    own: Any = Images()
    raw: Any = Bytes()
    default: Any = Default()
    same: list[dict[str, Any]] = [{"image_decode": "pil"}, {"auto_decode": True, "image_decode": "pil"}]
    for old in same:
        assert with_old(own, **old) is own
    for encoder in (own, raw, default):
        assert with_old(encoder, auto_decode=True) is encoder
    assert with_old(raw, auto_decode=False) is raw
    assert with_old(default, auto_decode=False, image_decode="pil").decoder is None
    other: list[tuple[Any, dict[str, Any]]] = [
        (own, {"image_decode": "rgb8"}),
        (own, {"image_decode": "pil", "av_decode": "torch"}),
        (own, {"auto_decode": False}),
        (raw, {"image_decode": "pil"}),
    ]
    for encoder, old in other:
        message = f"{', '.join(old)} would replace the decoder that {type(encoder).__name__} already has"
        with pytest.raises(ConfigError, match=message):
            with_old(encoder, **old)


@pytest.mark.parametrize("options", [{"rank": "0"}, {"num_workers": 1.0}, {"num_streams": "4"}, {"seed_offset": None}])
def test_a_worker_config_holds_whole_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not a whole number: give an int"):
        config(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace_path": 5}, "trace_path=5 is not a path"),
        ({"trace_path": "a\0b"}, "is not a path"),
        ({"trace_path": ""}, "trace_path='' is not a path"),
        ({"worker_debug_path": [1]}, r"worker_debug_path=\[1\] is not a path"),
        ({"worker_debug_path": "log-{rank}.jsonl"}, r"content than {worker_id} and {pid}.*log-{worker_id}"),
        ({"worker_debug_path": "{"}, "has braces with another content"),
        ({"worker_log_level": "1"}, "worker_log_level='1' is not a whole number"),
        ({"trace_max_bytes": 1e9}, "trace_max_bytes=1000000000.0 is not a whole number"),
        ({"global_error_handler": "print"}, "global_error_handler='print' is not a function"),
        ({"restore_error_handler": None}, "restore_error_handler=None is not a function"),
    ],
)
def test_a_worker_config_explains_wrong_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**options)


def test_a_path_that_is_none_is_explained(tmp_path: Path) -> None:
    for path, error in ((5, ConfigError), (b"x", ConfigError), ("a\0b", StorageError), ("http://[", StorageError)):
        for use in (StoragePath.of, prepare_dataset):
            with pytest.raises(error, match=r"is not a (path|URL)"):
                use(path)
    with pytest.raises(StorageError, match="it has a zero byte"):
        val(tmp_path, dataset_config="a\0b")
    with pytest.raises(ConfigError, match=r"data-{0..3}.tar is a pattern of shards. Give the folder"):
        val("data-{0..3}.tar")


@pytest.mark.parametrize("decoder", [SampleDecoder, "pil", False])
def test_a_decoder_is_an_instance(decoder: Any, folder: Path) -> None:
    encoder = Bytes()
    encoder.decoder = decoder
    with pytest.raises(ConfigError, match=r"Bytes.decoder is .* which is not a decoder. Give an instance"):
        train(folder, task_encoder=encoder)
