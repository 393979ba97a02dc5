"""The old options of decoders, which programs for Energon give to the functions that open datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from energon_dali import DaliDecoder, SampleDecoder, TaskEncoder
from energon_dali.compat.loading import _options, get_train_dataset, get_val_dataset, get_val_datasets
from energon_dali.errors import ConfigError
from tests.datasets.oracle import config
from tests.loader.dataset_folder import captioning_dataset

OPTIONS: dict[str, Any] = {"worker_config": config(), "batch_size": None}


class Plain(TaskEncoder[Any, Any, Any, Any]):
    pass


class Own(TaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="pil")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=4, shards=1)


def deprecated(name: str) -> Any:
    return pytest.warns(DeprecationWarning, match=f"{name} as arguments of the dataset are deprecated")


def first_image(dataset: Any) -> Any:
    return next(iter(dataset)).image


def image_decode(encoder: Any) -> str:
    assert isinstance(encoder.decoder, SampleDecoder)
    return encoder.decoder.spec.image_decode


@pytest.mark.parametrize(
    ("name", "value"),
    [("image_decode", "pil"), ("av_decode", "torch"), ("video_decode_audio", True), ("guess_content", True)],
)
@pytest.mark.parametrize("make", [get_train_dataset, get_val_dataset, get_val_datasets])
def test_an_old_option_sets_the_decoder_of_the_encoder(make: Any, name: str, value: Any, folder: Path) -> None:
    encoder = Plain()
    with deprecated(name) as caught:
        make(folder, task_encoder=encoder, **OPTIONS, **{name: value})
    assert [Path(one.filename).name for one in caught if one.category is DeprecationWarning] == [Path(__file__).name]
    assert isinstance(encoder.decoder, SampleDecoder)
    assert encoder.decoder.config()[name] == value
    assert Plain.decoder is TaskEncoder.decoder


def test_the_old_option_decodes_the_samples_also_in_later_calls(folder: Path) -> None:
    encoder = Plain()
    with deprecated("image_decode"):
        dataset = get_val_dataset(folder, task_encoder=encoder, image_decode="pil", **OPTIONS)
    assert isinstance(first_image(dataset), Image.Image)
    assert isinstance(first_image(get_val_dataset(folder, task_encoder=encoder, **OPTIONS)), Image.Image)
    with deprecated("image_decode"):
        dataset = get_val_dataset(folder, image_decode="pil", **OPTIONS)
    assert isinstance(first_image(dataset), Image.Image)
    assert not isinstance(first_image(get_val_dataset(folder, **OPTIONS)), Image.Image)


@pytest.mark.parametrize("kind", [Plain, Own])
def test_a_decoder_with_equal_options_is_accepted_and_another_is_not(kind: Any, folder: Path) -> None:
    encoder = kind()
    for make in (get_train_dataset, get_val_dataset, get_val_datasets):
        with deprecated("image_decode"):
            make(folder, task_encoder=encoder, image_decode="pil", **OPTIONS)
        assert image_decode(encoder) == "pil"
    message = f"image_decode would replace the decoder that {kind.__name__} already has"
    with deprecated("image_decode"), pytest.raises(ConfigError, match=message):
        get_train_dataset(folder, task_encoder=encoder, image_decode="rgb8", **OPTIONS)
    assert image_decode(encoder) == "pil"


def test_a_call_without_old_options_leaves_the_decoder_to_later_ones(folder: Path) -> None:
    encoder = Plain()
    get_train_dataset(folder, task_encoder=encoder, **OPTIONS)
    with deprecated("image_decode"):
        get_val_dataset(folder, task_encoder=encoder, image_decode="pil", **OPTIONS)
    assert image_decode(encoder) == "pil"


def test_auto_decode_alone_keeps_a_decoder_or_removes_it(folder: Path) -> None:
    for kind, name in ((Own, "pil"), (Plain, "torchrgb")):
        encoder: Any = kind()
        with deprecated("auto_decode"):
            get_val_dataset(folder, task_encoder=encoder, auto_decode=True, **OPTIONS)
        assert image_decode(encoder) == name
        with deprecated("auto_decode, image_decode"):
            dataset = get_val_dataset(
                folder, task_encoder=encoder, auto_decode=False, image_decode="torchrgb8", **OPTIONS
            )
        assert encoder.decoder is None
        assert bytes(first_image(dataset)).startswith(b"\xff\xd8")
        with deprecated("image_decode"), pytest.raises(ConfigError, match="image_decode would replace the decoder"):
            get_val_dataset(folder, task_encoder=encoder, image_decode="pil", **OPTIONS)


def test_the_decoder_of_an_old_option_becomes_a_dali_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENERGON_DALI_COMPAT_DECODER", "dali")
    encoder = Plain()
    for _ in range(2):
        with deprecated("image_decode"):
            given = _options({"task_encoder": encoder, "image_decode": "torchrgb8"})
        assert given.keys() == {"task_encoder"}
        assert isinstance(given["task_encoder"].decoder, DaliDecoder)
        assert given["task_encoder"].decoder.spec.image_decode == "torchrgb8"
        assert type(encoder.decoder) is SampleDecoder
        assert image_decode(encoder) == "torchrgb8"
