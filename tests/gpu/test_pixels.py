"""How far the device's pixels are from the CPU's, by chroma filter, hardware engine, subsampling and size."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from energon_dali.decode import MediaHandle, SampleDecoder
from energon_dali.decode.dali import DaliTuning
from energon_dali.decode.dali.dispatch import DaliHandle
from tests.decode.sample_images import photograph, sample_images
from tests.decode.tolerance import EXACT, GPU, explain_difference, psnr_db
from tests.gpu.observations import Observations
from tests.gpu.where import Where, values_of

SIZES = {"157x118": (157, 118), "500x375": (500, 375), "1920x1080": (1920, 1080)}
SUBSAMPLINGS = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0"}


def jpegs() -> dict[str, bytes]:
    """Returns photographs by "subsampling size"."""
    found = {}
    for label, size in SIZES.items():
        photo = photograph("flower", size)
        for name, subsampling in SUBSAMPLINGS.items():
            found[f"{name} {label}"] = _encode(photo, subsampling=subsampling, quality=90)
        found[f"gray {label}"] = _encode(photo.convert("L"), quality=90)
        found[f"progressive {label}"] = _encode(photo, progressive=True, quality=90)
    return found | {f"{name} small": sample_images()[f"jpeg-{name}"] for name in ("411", "440", "restart")}


def _encode(image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def compare(ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> dict[str, float]:
    """Returns the shares of values that are equal and within one level, the largest difference, and the PSNR."""
    difference = np.abs(ours.astype(np.int16) - theirs)
    ratio = psnr_db(ours, theirs)
    return {
        "equal": round(float((difference == 0).mean()), 4),
        "within_1": round(float((difference <= 1).mean()), 4),
        "largest": int(difference.max()),
        "psnr_db": round(min(ratio, 999.0), 1),
    }


@pytest.mark.parametrize("load", [0.0, 1.0])
@pytest.mark.parametrize("fancy", [True, False])
def test_difference_to_the_cpu(where: Where, observe: Observations, fancy: bool, load: float) -> None:
    tuning = DaliTuning(jpeg_fancy_upsampling=fancy, hw_decoder_load=load)
    decoder, reference = where.decoder(image_decode="rgb8", tuning=tuning), SampleDecoder(image_decode="rgb8")
    files = jpegs()
    if where.kind == "cpu":
        files = {name: data for name, data in files.items() if "1920" not in name}
    got = values_of(decoder, [decoder.stage("jpg", data) for data in files.values()])
    problems = {}
    for name, data, ours in zip(files, files.values(), got, strict=True):
        theirs = np.asarray(reference.decode("jpg", data))
        observe(**{name: compare(ours, theirs)})
        why = explain_difference(ours, theirs, GPU if where.kind == "gpu" else EXACT)
        if why is not None:
            problems[name] = why
    if fancy:  # DALI's default repeats chroma; it is measured, but not used
        assert not problems
    assert len(got) == len(files)


def test_stored_rgb_is_not_left_to_the_gpu(where: Where, observe: Observations) -> None:
    """nvJPEG may take it for YCbCr. What it makes of it is observed: if that is right, DALI may decode such files."""
    decoder = where.decoder(image_decode="rgb8")
    data = sample_images()["jpeg-rgb"]
    expected = np.asarray(SampleDecoder(image_decode="rgb8").decode("jpg", data))
    (by_dali,) = values_of(decoder, [DaliHandle("jpg", data, "jpeg", 157, 118, decoder.spec)])
    observe(by_dali=compare(by_dali, expected))
    assert type(decoder.make_handle("jpg", data)) is MediaHandle
    assert np.array_equal(decoder.stage("jpg", data), expected)


def test_regions_are_cut_out_of_the_same_pixels(where: Where, observe: Observations) -> None:
    """A crop decoded alone, compared with the same part of the whole image decoded on the same device."""
    from energon_dali.decode import CenterCrop

    crops = where.decoder(image_decode="rgb8", operations=[CenterCrop((64, 80))])
    whole = where.decoder(image_decode="rgb8")
    for name in ("jpeg-420", "jpeg-444", "jpeg-progressive", "png-rgb"):
        (part,) = values_of(crops, [crops.stage("jpg", sample_images()[name])])
        (image,) = values_of(whole, [whole.stage("jpg", sample_images()[name])])
        top, left = round((image.shape[0] - 64) / 2), round((image.shape[1] - 80) / 2)
        numbers = compare(part, image[top : top + 64, left : left + 80])
        observe(**{name: numbers})
        assert numbers["psnr_db"] >= (40 if where.kind == "gpu" else 999)
