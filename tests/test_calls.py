"""Wrong arguments and misspelt names: every public constructor says what was probably meant and what to do."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import energon_dali
from energon_dali import (
    ArgumentError,
    ConfigError,
    DaliDecoder,
    DefaultTaskEncoder,
    FilterDataset,
    MapDataset,
    Resize,
    SampleDecoder,
    ShardCache,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_dali.calls import check_switches
from energon_dali.samples.base import Sample
from tests.loader.numbers_dataset import tree

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=4)
# Created per sample, or only by the package, or without a constructor of their own.
NOT_CALLED = {
    "AVData",
    "AVWebdatasetDecoder",
    "AudioFrontEnd",
    "AudioInput",
    "Batch",
    "CachePool",
    "Clips",
    "DatasetLoaderInterface",
    "Decoder",
    "DirectLazy",
    "EncodedChat",
    "FileCacheLazy",
    "FileStore",
    "FileStoreDecoder",
    "FrontEnd",
    "Lazy",
    "LoaderStatistics",
    "MediaHandle",
    "MockLazy",
    "NoCachePool",
    "PackedSequences",
    "PrimaryFileStore",
    "SavableDataset",
    "SourceInfo",
    "TaskEncoder",
    "VideoFrontEnd",
    "VideoInput",
    "VisionInput",
}


def constructors() -> list[Any]:
    values = [getattr(energon_dali, name) for name in energon_dali.__all__ if name not in NOT_CALLED]
    kinds = (Sample, BaseException, dict)
    return [value for value in values if isinstance(value, type) and not issubclass(value, kinds)]


@pytest.mark.parametrize("kind", constructors(), ids=lambda kind: kind.__name__)
def test_every_constructor_names_itself_and_the_nearest_argument(kind: Any) -> None:
    names = [name for name in inspect.signature(kind).parameters if name not in ("options", "datasets")]
    wrong = names[-1] + "x"
    with pytest.raises(ArgumentError, match=f"{kind.__name__}.. has no argument '{wrong}'. Did you mean .*{names[-1]}"):
        kind(**{wrong: 1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get_loader(tree(CONFIG), num_workers=4), r"get_loader\(\) has no .* WorkerConfig\(num_workers=\.\.\."),
        (lambda: get_savable_loader(tree(CONFIG), prefetch=4), "get_savable_loader.*Did you mean prefetch_factor"),
        (lambda: SampleDecoder(image_decode_mode="pil"), r"SampleDecoder\(\) has no .* Did you mean image_decode\?"),
        (lambda: DaliDecoder(max_pixel=1), r"DaliDecoder\(\) has no argument 'max_pixel'. Did you mean max_pixels"),
        (lambda: get_train_dataset("x", batchsize=3), "has no argument 'batchsize'. Did you mean batch_size"),
        (lambda: get_train_dataset("x", fieldmap={}), "has no argument 'fieldmap'. Did you mean field_map"),
        (lambda: get_val_dataset("x", repeat=False), r"has no argument 'repeat'. Only get_train_dataset repeats"),
        (
            lambda: get_val_dataset("x", shuffle_buffer_size=9),
            "Only get_train_dataset shuffles its data; validation keeps",
        ),
        (lambda: get_train_dataset("x", limit=3), r"Only validation datasets take it; .* virtual_epoch_length"),
        (lambda: FilterDataset(tree(CONFIG)), r"needs filter_fn. Call it as FilterDataset\(dataset, \*, "),
        (lambda: FilterDataset(tree(CONFIG), bool), r"takes 1 argument without a name, but was given 2. Call it"),
        (lambda: MapDataset(map_fn=bool), r"MapDataset\(\) needs dataset\."),
        (lambda: Resize(1, size=2), r"Resize\(\): multiple values for argument 'size'"),
        (lambda: WorkerConfig(0, 1, 2), r"WorkerConfig\(\) takes no arguments without a name, but was given 3"),
        (lambda: WorkerConfig(rank=0, wrong_thing=3), "has no argument 'wrong_thing'. It takes data_parallel_group"),
    ],
)
def test_the_message_says_what_to_do(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        call()
    assert isinstance(raised.value, ConfigError)
    assert isinstance(raised.value, TypeError)


def test_switches_are_true_or_false() -> None:
    """Text such as "no" would count as True."""
    for name, value in {"yes": True, "no": False, "one": 1, "zero": 0, "other": np.True_}.items():
        check_switches(**{name: value})
    for value in ("no", b"", None, 2, [True], 0.5):
        with pytest.raises(ConfigError, match=r"repeat=.* is invalid: give True or False"):
            check_switches(repeat=value)
    for name in ("repeat", "batch_drop_last", "allow_estimates", "window_in_slice", "allow_imports", "allow_code"):
        with pytest.raises(ConfigError, match=f"{name}='no' is invalid: give True or False"):
            get_train_dataset("x", **{name: "no"})
    for name in ("av_lazy", "video_decode_audio", "guess_content", "audio_of_videos", "apply_exif_orientation"):
        with pytest.raises(ConfigError, match=f"{name}='no' is invalid: give True or False"):
            SampleDecoder(**{name: "no"})  # type: ignore[arg-type]
    for name in ("fail_on_timeout", "check_plan"):
        with pytest.raises(ConfigError, match=f"{name}='no' is invalid: give True or False"):
            get_loader(tree(CONFIG), **{name: "no"})  # type: ignore[arg-type]


def test_wrong_types_are_named() -> None:
    with pytest.raises(ConfigError, match=r"av_limits=5 is invalid. Give AVLimits\(...\), or leave it out"):
        SampleDecoder(av_limits=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"ShardCache\(path=3\) is not a path: give a folder on a local disk"):
        ShardCache(3, max_bytes="1GB")  # type: ignore[arg-type]


def test_a_users_subclass_is_called_by_its_own_name() -> None:
    class Mine(SampleDecoder):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)

    with pytest.raises(ArgumentError, match=r"Mine\(\) has no argument 'image_decod'"):
        Mine(image_decod="pil")


def test_a_type_error_inside_a_call_stays_what_it_is() -> None:
    class Encoder(DefaultTaskEncoder):
        def __init__(self) -> None:
            super().__init__()
            len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len") as raised:
        Encoder()
    assert not isinstance(raised.value, ArgumentError)


def test_what_is_explained_keeps_its_signature_and_pickles() -> None:
    assert "prefetch_factor" in inspect.signature(get_loader).parameters
    assert "prefetch_factor" in inspect.signature(get_savable_loader).parameters
    assert "image_decode" in inspect.signature(SampleDecoder).parameters
    assert pickle.loads(pickle.dumps(get_train_dataset)) is get_train_dataset
    assert pickle.loads(pickle.dumps(Resize(3))) == Resize(3)


def test_slips_in_public_names_are_answered() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'get_train_datset'. Did you mean get_train_dataset"):
        energon_dali.get_train_datset  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'SampleDecodr' .* Did you mean SampleDecoder"):
        from energon_dali import SampleDecodr  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'qwertz'"):
        from energon_dali import qwertz  # type: ignore[attr-defined] # noqa: F401
    assert not hasattr(energon_dali, "get_train_datset")


def test_a_loader_shows_what_it_is() -> None:
    dataset = MapDataset(tree(CONFIG), tuple)
    assert repr(get_loader(dataset)) == (
        "BasicDataLoader(<MapDataset(tuple)>, rank=0, world_size=1, num_workers=0, prefetch_factor=2)"
    )
