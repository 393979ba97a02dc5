"""A spec has 17 names, each with its meaning, and refuses invalid combinations."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import pytest
from webdataset.autodecode import imagespecs

from energon_dali.decode import CenterCrop, HorizontalFlip, ImageSpec, Normalize, Resize
from energon_dali.decode.spec import IMAGE_DECODE_NAMES, ImageDecode
from energon_dali.errors import ConfigError


def test_the_names_are_those_of_webdataset() -> None:
    assert set(IMAGE_DECODE_NAMES) == set(imagespecs) == set(get_args(ImageDecode))
    for name, (container, dtype, mode) in imagespecs.items():
        spec = ImageSpec(name)
        assert (spec.container, spec.mode) == (container, mode.upper())
        assert spec.dtype == ("float32" if dtype == "float" else "uint8")
        assert spec.channels == len(mode)


def test_a_spec_is_a_value() -> None:
    spec = ImageSpec("torchrgb", [Resize(8), HorizontalFlip(), Normalize((0.5,), (0.5,))], image_dtype="bfloat16")  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.geometric == (Resize(8), HorizontalFlip())
    assert again.normalize == Normalize((0.5,), (0.5,))
    assert ImageSpec("torch", spec.operations, image_dtype="bfloat16") != spec
    assert ImageSpec("torchrgb", CenterCrop(3)).operations == (CenterCrop(3),)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        spec.dtype = "uint8"  # type: ignore[misc]


def test_layouts() -> None:
    assert [ImageSpec(name).layout for name in ("torchrgb", "rgb8", "torchl", "l8")] == ["CHW", "HWC", "HW", "HW"]  # type: ignore[arg-type]
    assert ImageSpec("torchl", image_layout="CHW").layout == "CHW"
    assert ImageSpec("torchrgb", image_layout="HWC").layout == "HWC"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_decode": "bgr"}, "image_decode='bgr' is unknown.*Choose one of l8, rgb8"),
        ({"image_decode": "pil", "image_dtype": "float32"}, "PIL images of these modes hold bytes"),
        ({"image_decode": "pil", "image_layout": "CHW"}, "has no layout of its own"),
        ({"image_decode": "pil", "operations": (Normalize((0.5,), (0.5,)),)}, "which bytes cannot hold"),
        ({"image_decode": "rgb", "image_dtype": "bfloat16"}, "numpy has no bfloat16"),
        ({"image_dtype": "int8"}, "image_dtype='int8'.*Give one of uint8, float32, float16, bfloat16"),
        ({"image_layout": "NHWC"}, "image_layout='NHWC' is unknown"),
        ({"image_decode": "torchrgb8", "operations": (Normalize((0.5,), (0.5,)),)}, "which bytes cannot hold"),
        ({"operations": (Normalize((0.5, 0.5), (0.5, 0.5)),)}, "Give 1 or 3 values"),
        ({"operations": (Normalize((0.5,), (0.5,)),) * 2}, "hold Normalize 2 times"),
        ({"operations": (Resize(3), Resize(4, "nearest"))}, "resample in different ways"),
        ({"operations": (Resize(3), Resize(4, antialias=False))}, "resample in different ways"),
        ({"operations": ("resize",)}, "Use Resize, RandomResizedCrop, CenterCrop"),
        ({"operations": 7}, "operations=7 cannot run"),
        ({"max_pixels": 0}, "max_pixels=0 would refuse every image"),
        ({"max_bytes": 1.5}, "max_bytes=1.5 would refuse every image"),
        ({"max_bytes": "1GB"}, "max_bytes='1GB' is not a number. The limit is a whole number"),
        ({"apply_exif_orientation": "no"}, "apply_exif_orientation='no' is invalid: give True or False"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ImageSpec(**options)


def test_normalize_takes_as_many_values_as_channels() -> None:
    for name, channels in (("torchl", 1), ("torchrgb", 3), ("torchrgba", 4)):
        values = (0.5,) * channels
        assert ImageSpec(name, (Normalize(values, values),)).normalize == Normalize(values, values)  # type: ignore[arg-type]
