"""Decoding less: rows that are not needed change no pixel; a smaller scale changes them within the written table."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energon_dali import DaliDecoder, DecodeError, FrontEnd, SampleDecoder
from energon_dali.decode import (
    CenterCrop,
    Decoded,
    HorizontalFlip,
    ImageSpec,
    MediaHandle,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    screen_image,
)
from energon_dali.decode.dali.dispatch import DaliHandle
from energon_dali.decode.formats.jpeg import open_reduced
from energon_dali.decode.formats.jpeg2000 import open_reduced as open_reduced_jpeg2000
from energon_dali.decode.geometry import handle_geometry
from energon_dali.decode.images import decode_image
from energon_dali.decode.reduction import FACTORS, Reduction, find_reduction
from energon_dali.errors import ConfigError
from tests.decode.sample_images import encode, exif, photograph, sample_images, with_alpha

BIG = photograph("china", (803, 541))
"""Neither side is a multiple of 8."""
LEAST_PSNR = {"fast": 38.0, "fastest": 33.0}
"""Of the results of this module, compared with "exact", in dB. docs/decode-scale.md has the table for photographs."""


def handle(data: bytes, *operations: Any, seed: int = 0, **options: Any) -> MediaHandle:
    header = screen_image(data)
    spec = ImageSpec(options.pop("image_decode", "rgb8"), operations, **options)
    return MediaHandle("jpg", data, header.format, header.width, header.height, spec, header.orientation, seed)


def reduction_of(encoded: MediaHandle) -> Reduction | None:
    return find_reduction(encoded, handle_geometry(encoded))


def psnr(a: Any, b: Any) -> float:
    error = float(np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2))
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


# --- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in sample_images() if name.startswith("jpeg") and name != "jpeg-1x1"])
def test_rows_that_are_not_decoded_change_no_pixel(name: str) -> None:
    data = sample_images()[name]
    whole = decode_image(handle(data))
    cut = 0
    for height, seed in itertools.product((1, 16, 40), range(8)):
        encoded = handle(data, RandomCrop((height, 31)), seed=seed)
        geometry = handle_geometry(encoded)
        assert geometry is not None
        top, left, rows, columns = geometry.window
        assert np.array_equal(decode_image(encoded), whole[top : top + rows, left : left + columns]), (height, seed)
        found = reduction_of(encoded)
        cut += found is not None and found.rows < encoded.height
    assert cut > 5


def test_fewer_rows_are_loaded_and_the_file_stays_as_it_is() -> None:
    data = encode(BIG, "JPEG", quality=90)
    for buffer in (data, bytearray(data), memoryview(b"x" + data)[1:]):
        image = open_reduced(buffer, 1, 100)
        image.load()
        assert image.size == (803, 112)  # whole units of 16 rows
        assert bytes(buffer) == data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rows_of_rotated_images(orientation: int) -> None:
    data = encode(BIG, "JPEG", exif=exif(orientation))
    for turns in (False, True):
        whole = decode_image(handle(data, apply_exif_orientation=turns))
        for seed in range(6):
            encoded = handle(data, RandomCrop((30, 40)), seed=seed, apply_exif_orientation=turns)
            geometry = handle_geometry(encoded)
            assert geometry is not None
            top, left, rows, columns = geometry.window
            assert np.array_equal(decode_image(encoded), whole[top : top + rows, left : left + columns])


def test_whole_images_are_decoded_as_they_are() -> None:
    for operations in ((), (HorizontalFlip(0.0),)):
        assert reduction_of(handle(encode(BIG, "JPEG"), *operations)) is None


# --- scale ---------------------------------------------------------------------------------------------------------


@given(
    width=st.integers(8, 4000),
    height=st.integers(8, 4000),
    out=st.tuples(st.integers(1, 600), st.integers(1, 600)),
    scale=st.sampled_from(["exact", "fast", "fastest"]),
    seed=st.integers(0, 50),
)
def test_factor_is_the_largest_that_leaves_enough_pixels(
    width: int, height: int, out: tuple[int, int], scale: Any, seed: int
) -> None:
    spec = ImageSpec("rgb8", (RandomResizedCrop(out),), decode_scale=scale)
    encoded = MediaHandle("jpg", b"", "jpeg", width, height, spec, seed=seed)
    geometry = handle_geometry(encoded)
    found = reduction_of(encoded)
    factor = 1 if found is None else found.factor
    if geometry is None or scale == "exact":
        assert factor == 1
        return
    left = min(geometry.height / out[0], geometry.width / out[1])
    wanted = {"fast": 2, "fastest": 1}[scale]
    assert factor == 1 or left / factor >= wanted
    assert all(left / larger < wanted for larger in FACTORS if larger > factor)


@pytest.mark.parametrize("scale", ["fast", "fastest"])
@pytest.mark.parametrize("form", ["baseline", "progressive", "444", "gray", "cmyk", "JPEG2000"])
def test_smaller_scales_show_the_same(form: str, scale: Any) -> None:
    data = {
        "baseline": lambda: encode(BIG, "JPEG", quality=92),
        "progressive": lambda: encode(BIG, "JPEG", quality=92, progressive=True),
        "444": lambda: encode(BIG, "JPEG", quality=92, subsampling=0),
        "gray": lambda: encode(BIG.convert("L"), "JPEG", quality=92),
        "cmyk": lambda: encode(BIG.convert("CMYK"), "JPEG", quality=92),
        "JPEG2000": lambda: encode(BIG, "JPEG2000", quality_mode="rates", quality_layers=[12]),
    }[form]()
    operations: list[Sequence[Any]] = [
        (Resize((67, 50)),),
        (Resize(60), CenterCrop(48)),
        (RandomResizedCrop((40, 48), scale=(0.3, 1.0)), HorizontalFlip(0.5)),
        (Resize((67, 50), interpolation="bicubic"),),
    ]
    for chosen, seed in itertools.product(operations, range(2)):
        exact = decode_image(handle(data, *chosen, seed=seed))
        encoded = handle(data, *chosen, seed=seed, decode_scale=scale)
        found = reduction_of(encoded)
        assert found is not None
        assert found.factor > 1
        # An image that was decoded in full after all would equal the exact one.
        assert LEAST_PSNR[scale] < psnr(decode_image(encoded), exact) < math.inf, (chosen, seed)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_smaller_scales_of_rotated_images(orientation: int) -> None:
    """A side that is not a multiple of the factor is padded at its stored end, which may be the first one upright."""
    data = encode(BIG, "JPEG", quality=92, exif=exif(orientation))
    for turns, size in itertools.product((False, True), ((60, 60), (33, 90))):
        options: dict[str, Any] = {"apply_exif_orientation": turns, "seed": orientation}
        exact = decode_image(handle(data, RandomResizedCrop(size, scale=(0.6, 1)), **options))
        fast = decode_image(handle(data, RandomResizedCrop(size, scale=(0.6, 1)), decode_scale="fast", **options))
        assert psnr(fast, exact) > LEAST_PSNR["fast"]


@pytest.mark.parametrize("form", ["JPEG", "JPEG2000"])
def test_smaller_images_are_not_shifted(form: str) -> None:
    """A ramp of gray: a shift by a tenth of a pixel would show. Rounding shows in a mirrored ramp likewise."""
    ramp = np.linspace(20, 235, 640).astype(np.uint8)[None, :, None].repeat(64, 0).repeat(3, 2)
    for factor, out in ((2, 160), (4, 80), (8, 40)):
        if form == "JPEG2000":  # needs twice as many decoded pixels
            out //= 2
        errors = []
        for values in (ramp, ramp[:, ::-1]):
            options = {"quality": 100, "subsampling": 0} if form == "JPEG" else {}
            data = encode(Image.fromarray(np.ascontiguousarray(values)), form, **options)
            chosen = (CenterCrop((64, 600)), Resize((64 * out // 640, out)))
            exact = decode_image(handle(data, *chosen, image_decode="rgb"))
            encoded = handle(data, *chosen, image_decode="rgb", decode_scale="fastest")
            found = reduction_of(encoded)
            assert found is not None
            assert found.factor == factor
            errors.append((decode_image(encoded) - exact)[:, 2:-2].mean() * 255)
        shift = (errors[0] - errors[1]) / 2 * 640 / 215  # in pixels of the full image
        assert abs(shift) < 0.1 * factor


def by_ffmpeg(image: Image.Image, pixel_format: str) -> bytes:
    """Returns a JPEG 2000 file in a pixel format of FFmpeg: PIL writes no subsampled ones."""
    import av

    context: Any = av.CodecContext.create("jpeg2000", "w")
    context.width, context.height, context.pix_fmt, context.time_base = *image.size, pixel_format, Fraction(1)
    frame = av.VideoFrame.from_image(image).reformat(format=pixel_format)
    return b"".join(bytes(packet) for packet in (*context.encode(frame), *context.encode(None)))


def with_palette(image: Image.Image) -> bytes:
    """Returns a JPEG 2000 file of 256 colours, which PIL does not write."""

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(content), kind) + content

    indexed = image.quantize(256)
    colors = indexed.getpalette("RGB")
    assert colors is not None
    palette = struct.pack(">HB", 256, 3) + b"\7\7\7" + bytes(colors)
    header = (
        box(b"ihdr", struct.pack(">IIHBBBB", image.height, image.width, 1, 7, 7, 0, 0))
        + box(b"colr", struct.pack(">BBBI", 1, 0, 0, 16))
        + box(b"pclr", palette)
        + box(b"cmap", b"".join(struct.pack(">HBB", 0, 1, channel) for channel in range(3)))
    )
    gray = Image.frombytes("L", image.size, indexed.tobytes())
    return (
        box(b"jP  ", b"\r\n\x87\n")
        + box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
        + box(b"jp2h", header)
        + box(b"jp2c", encode(gray, "JPEG2000", no_jp2=True))
    )


@pytest.mark.parametrize("scale", ["fast", "fastest"])
@pytest.mark.parametrize("form", ["yuv420p", "yuv410p", "yuva420p", "yuv420p10le", "palette", "16 bits"])
def test_jpeg2000_that_pil_reduces_to_wrong_colours_is_decoded_in_full(form: str, scale: Any) -> None:
    """Of 404 x 308 pixels, chroma at a quarter has 50.5 x 38.5."""
    photo = photograph("coffee", (404, 308))
    if form == "palette":
        data = with_palette(photo)
    elif form == "16 bits":
        data = encode(Image.fromarray(np.asarray(photo.convert("L")).astype(np.uint16) * 2), "JPEG2000")
    else:
        data = by_ffmpeg(photo, form)
    for size in ((60, 90), (30, 40)):
        exact = decode_image(handle(data, Resize(size)))
        assert exact.std() > 40, "an image is to be seen"
        assert np.array_equal(decode_image(handle(data, Resize(size), decode_scale=scale)), exact)


@pytest.mark.parametrize("form", ["RGB", "L", "RGBA", "YCbCr", "tiles", "yuv444p"])
def test_other_jpeg2000_is_reduced(form: str) -> None:
    photo = photograph("coffee", (400, 304))
    if form == "yuv444p":
        data = by_ffmpeg(photo, form)
    elif form == "tiles":
        data = encode(photo, "JPEG2000", tile_size=(208, 168))
    else:
        data = encode(with_alpha(photo) if form == "RGBA" else photo.convert(form), "JPEG2000")
    for factor in FACTORS:
        image = open_reduced_jpeg2000(data, factor, 0)
        image.load()
        assert image.size == (400 // factor, 304 // factor)
        out = (300 // (2 * factor), 400 // (2 * factor))
        exact = decode_image(handle(data, Resize(out)))
        reduced = decode_image(handle(data, Resize(out), decode_scale="fastest"))
        assert 30 < psnr(reduced, exact) < 60


def test_wavelets_with_few_levels_are_decoded_in_full() -> None:
    data = encode(BIG, "JPEG2000", num_resolutions=2)
    exact = decode_image(handle(data, Resize((20, 30))))
    assert np.array_equal(decode_image(handle(data, Resize((20, 30)), decode_scale="fastest")), exact)


def test_formats_without_scales_are_decoded_in_full() -> None:
    for form in ("PNG", "WEBP", "BMP", "TIFF"):
        data = encode(BIG, form)
        exact = decode_image(handle(data, Resize((20, 30))))
        assert np.array_equal(decode_image(handle(data, Resize((20, 30)), decode_scale="fastest")), exact)


def test_damaged_files_fail_at_every_scale() -> None:
    """PIL loads a JPEG without its end at 1/8 of its size if it need not read that far."""
    data = encode(BIG, "JPEG", quality=92)
    for broken in (data[: len(data) * 3 // 4], data[:-2]):
        for scale in ("exact", "fast", "fastest"):
            for operation in (Resize((20, 30)), RandomResizedCrop((9, 9), scale=(0.01, 0.02))):
                with pytest.raises(DecodeError):
                    decode_image(handle(broken, operation, decode_scale=scale))


# --- decoders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["exact", "fast", "fastest"])
def test_dali_decoder_gives_the_pixels_of_the_sample_decoder(scale: Any) -> None:
    """PIL decodes what is decoded at 1/4 and 1/8; of the others DALI decodes the region at full size."""
    data = encode(BIG, "JPEG", quality=40)
    options: dict[str, Any] = {
        "image_decode": "torchrgb8",
        "operations": [RandomResizedCrop(48), HorizontalFlip()],
        "decode_scale": scale,
    }
    pil, dali = SampleDecoder(**options), DaliDecoder(image_decode_device="cpu", **options)
    staged = [dali.stage("jpg", data, seed=seed) for seed in range(24)]
    late = [value for value in staged if isinstance(value, MediaHandle)]
    smaller = 0
    for seed, value in enumerate(staged):
        expected = pil.decode_part("jpg", data, seed=seed)
        encoded = pil.make_handle("jpg", data, seed=seed)
        found = reduction_of(encoded)
        if found is not None and found.factor >= 4:
            smaller += 1
            assert np.array_equal(value, expected)
            (outcome,) = dali.decode_block([encoded])  # a handle of another decoder
            assert isinstance(outcome, Decoded)
            assert (outcome.route, np.array_equal(outcome.value, expected)) == ("pil", True)
        else:
            assert isinstance(value, MediaHandle)
    assert len(late) == 24 - smaller
    assert (smaller > 0) == (scale != "exact")
    exact = SampleDecoder(image_decode="torchrgb8", operations=[RandomResizedCrop(48), HorizontalFlip()])
    for handle_, outcome in zip(late, dali.decode_block(late), strict=True):
        assert isinstance(outcome, Decoded)
        assert outcome.route == "dali-cpu"
        assert psnr(outcome.value, exact.decode_part("jpg", data, seed=handle_.seed)) > 60


def test_dali_keeps_a_file_that_is_large_for_its_pixels() -> None:
    decoder = DaliDecoder(image_decode_device="cpu", operations=[Resize((32, 32))], decode_scale="fastest")
    small, large = (encode(BIG, "JPEG", quality=quality) for quality in (40, 92))
    assert len(small) < 0.15 * BIG.width * BIG.height < len(large)
    assert not isinstance(decoder.make_handle("jpg", small), DaliHandle)
    assert isinstance(decoder.make_handle("jpg", large), DaliHandle)


def test_options_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="decode_scale='quick' is unknown"):
        SampleDecoder(decode_scale="quick")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='feed="native"'):
        DaliDecoder(decode_scale="fast", feed="native")
    assert SampleDecoder(decode_scale="fast").config()["decode_scale"] == "fast"


# --- front ends ----------------------------------------------------------------------------------------------------

FIXED = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 64},
    "do_center_crop": True,
    "crop_size": {"height": 64, "width": 64},
    "do_normalize": False,
    "do_rescale": True,
    "resample": 3,
}
TILES = {
    "image_processor_type": "GotOcr2ImageProcessor",
    "size": {"height": 64, "width": 64},
    "crop_to_patches": True,
    "min_patches": 1,
    "max_patches": 4,
    "resample": 3,
}


@pytest.mark.parametrize("resampling", ["pil", "torch"])
@pytest.mark.parametrize("config", [FIXED, TILES], ids=["fixed", "tiles"])
@pytest.mark.parametrize("operations", [(), (RandomResizedCrop(256, scale=(0.7, 1.0)), HorizontalFlip(0.5))])
def test_front_ends(tmp_path: Any, config: dict[str, Any], resampling: Any, operations: tuple[Any, ...]) -> None:
    import json

    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    front_end = FrontEnd.from_processor(tmp_path, dtype="uint8", resampling=resampling)
    data = encode(photograph("china", (1203, 941)), "JPEG", quality=92)
    for seed in range(2):
        options: dict[str, Any] = {"operations": operations, "front_end": front_end}
        exact = SampleDecoder(**options).make_handle("jpg", data, seed=seed).decode()
        encoded = SampleDecoder(**options, decode_scale="fast").make_handle("jpg", data, seed=seed)
        found = reduction_of(encoded)
        assert found is not None
        assert found.factor > 1
        fast = encoded.decode()
        assert fast.layout == exact.layout
        assert psnr(fast.pixels, exact.pixels) > LEAST_PSNR["fast"]


def test_reduced_files_are_read_by_pil_alone() -> None:
    """The height in the header is all that changes: PIL finds the same rows."""
    data = encode(BIG, "JPEG", quality=92, progressive=True)
    image = open_reduced(data, 1, 200)
    image.load()
    with Image.open(BytesIO(data)) as whole:
        assert np.array_equal(np.asarray(image)[:200], np.asarray(whole)[:200])
