"""EXIF blocks as real files have them: every decoder rotates images the same way, and no block ends the process."""

from __future__ import annotations

import struct
import warnings
import zlib
from io import BytesIO
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.decode import CenterCrop, Decoded, MediaHandle, screen_image
from energon_dali.decode.front_ends import FrontEnd
from tests.decode.sample_images import encode, exif, photograph

PHOTO = photograph(size=(21, 14))
UPRIGHT = {"image_decode": "rgb8", "apply_exif_orientation": True}
ORIENTATION, OTHER_TAGS = 0x0112, (0x010F, 0x8769, 0x011A, 0x0128, 0x0213)


def in_jpeg(*blocks: bytes) -> bytes:
    data = encode(PHOTO, "JPEG", quality=60)
    segments = [b"\xff\xe1" + struct.pack(">H", len(block) + 8) + b"Exif\0\0" + block for block in blocks]
    return data[:20] + b"".join(segments) + data[20:]


def in_png(*blocks: bytes) -> bytes:
    data = encode(PHOTO, "PNG")
    chunks = [
        struct.pack(">I", len(block)) + b"eXIf" + block + struct.pack(">I", zlib.crc32(b"eXIf" + block))
        for block in blocks
    ]
    return data[:33] + b"".join(chunks) + data[33:]


def in_webp(*blocks: bytes) -> bytes:
    data = encode(PHOTO, "WEBP", exif=exif(1))
    data = data[: data.index(b"EXIF")]
    for block in blocks:
        data += b"EXIF" + struct.pack("<I", len(block)) + block + b"\0" * (len(block) % 2)
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def xmp(orientation: int, form: str = 'tiff:Orientation="{}"') -> bytes:
    return f"<x:xmpmeta><rdf:Description {form.format(orientation)} /></x:xmpmeta>".encode()


def raw_profile(orientation: int) -> str:
    """Returns an EXIF block as ImageMagick writes it into a text chunk of a PNG."""
    block = exif(orientation)
    return f"\nexif\n{len(block):8}\n{block.hex()}\n"


def png_text(form: str, name: str, text: str | bytes) -> bytes:
    """Returns a PNG with a text chunk of the given type."""
    info = PngInfo()
    if form == "iTXt":
        info.add_itxt(name, text if isinstance(text, str) else text.decode())
    elif form == "iTXt packed":
        info.add_itxt(name, text if isinstance(text, str) else text.decode(), zip=True)
    else:
        info.add_text(name, text if isinstance(text, str) else text.decode(), zip=form == "zTXt")
    return encode(PHOTO, "PNG", pnginfo=info)


def elsewhere(orientation: int) -> dict[str, bytes]:
    """Returns images whose orientation is not in an EXIF block."""
    element = "><tiff:Orientation>{}</tiff:Orientation"
    other_tag = Image.Exif()
    other_tag[0x010F] = "Maker"
    return {
        "jpeg": encode(PHOTO, "JPEG", xmp=xmp(orientation)),
        "jpeg, element": encode(PHOTO, "JPEG", xmp=xmp(orientation, element)),
        "jpeg, EXIF without": encode(PHOTO, "JPEG", xmp=xmp(orientation), exif=other_tag.tobytes()),
        "jpeg, EXIF first": encode(PHOTO, "JPEG", xmp=xmp(orientation), exif=exif(8)),
        "jpeg, EXIF 1": encode(PHOTO, "JPEG", xmp=xmp(orientation), exif=exif(1)),
        "webp": encode(PHOTO, "WEBP", xmp=xmp(orientation)),
        "webp, EXIF first": encode(PHOTO, "WEBP", xmp=xmp(orientation), exif=exif(6)),
        "tiff": encode(PHOTO, "TIFF", tiffinfo={700: xmp(orientation)}),
        "png": png_text("iTXt", "XML:com.adobe.xmp", xmp(orientation)),
        "png, packed": png_text("iTXt packed", "XML:com.adobe.xmp", xmp(orientation)),
        "png, text": png_text("tEXt", "XML:com.adobe.xmp", xmp(orientation)),
        "png, profile": png_text("tEXt", "Raw profile type exif", raw_profile(orientation)),
        "png, packed profile": png_text("zTXt", "Raw profile type exif", raw_profile(orientation)),
        "png, other text": png_text("tEXt", "Description", xmp(orientation)),
    }


def directory(order: str, *entries: tuple[int, int, int, int], offset: int = 8) -> bytes:
    """Returns a TIFF structure of (tag, type, count, value) entries with 16-bit values."""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, offset) + bytes(max(0, offset - 8))
    rows = b"".join(struct.pack(order + "HHIHH", *entry, 0) for entry in entries)
    return head + struct.pack(order + "H", len(entries)) + rows + bytes(4)


def random_directory(random: Random) -> bytes:
    entries = [
        (
            random.choice((ORIENTATION, ORIENTATION, *OTHER_TAGS)),
            random.choice((3,) * 12 + (1, 2, 4, 7, 13)),
            random.choice((1,) * 12 + (0, 2, 5, 1_000_000)),
            random.randrange(10),
        )
        for _ in range(random.choice((1, 1, 1, 2, 3)))
    ]
    block = directory(random.choice("<>"), *entries, offset=random.choice((8, 8, 8, 8, 9, 10, 2, 40)))
    return block if random.random() < 0.8 else block[: random.randrange(len(block) + 1)]


@pytest.mark.parametrize("place", [in_jpeg, in_png])
def test_two_orientations_are_kept_from_dali(place: object) -> None:
    """DALI 2.4 mixes them, and then writes past the end of its memory."""
    for second in (2, 3, 5, 8):
        six, other = ((ORIENTATION, 3, 1, value) for value in (6, second))
        assert screen_image(place(directory("<", six))).dali_decodable  # type: ignore[operator]
        for blocks in ([directory("<", six, other)], [directory("<", six), directory(">", other)]):
            data = place(*blocks)  # type: ignore[operator]
            assert not screen_image(data).dali_decodable
            if place is not in_png:  # for PNGs, PIL takes the last block
                assert screen_image(data).orientation == 6
            with Image.open(BytesIO(data)) as image:
                if len(blocks) == 2:
                    wanted = np.asarray(ImageOps.exif_transpose(image))
                    got = SampleDecoder(**UPRIGHT).decode("jpg", data)  # type: ignore[arg-type]
                    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("place", [in_png, in_webp])
def test_a_prefix_that_belongs_to_jpegs_is_stepped_over(place: object) -> None:
    data = place(b"Exif\0\0" + directory("<", (ORIENTATION, 3, 1, 6)))  # type: ignore[operator]
    header = screen_image(data)
    assert (header.orientation, header.dali_decodable) == (6, False)
    assert DaliDecoder(image_decode_device="cpu", **UPRIGHT).decode("jpg", data).shape == (21, 14, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 6, 8, 9])
def test_orientation_outside_of_exif_turns_images_as_pil_does(orientation: int) -> None:
    dali, pil = DaliDecoder(image_decode_device="cpu", **UPRIGHT), SampleDecoder(**UPRIGHT)  # type: ignore[arg-type]
    turned = 0
    for name, data in elsewhere(orientation).items():
        with Image.open(BytesIO(data)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        turned += expected.shape != (14, 21, 3)
        for decoder in (dali, pil):
            np.testing.assert_array_equal(decoder.decode("jpg", data), expected, err_msg=name)
        staged = dali.stage("jpg", data)
        if isinstance(staged, MediaHandle):
            (outcome,) = dali.decode_block([staged])
            assert isinstance(outcome, Decoded)
            np.testing.assert_array_equal(outcome.value, expected, err_msg=name)
        header = screen_image(data)
        size = (header.width, header.height) if header.orientation < 5 else (header.height, header.width)
        assert size == expected.shape[1::-1], name
    assert turned == (12 if orientation in (6, 8) else 2)


def irregular(orientation: int) -> dict[str, bytes]:
    """Returns images whose headers only PIL reads."""
    jpeg, png = encode(PHOTO, "JPEG", exif=exif(orientation)), encode(PHOTO, "PNG", exif=exif(orientation))
    return {
        "jpeg, fill byte": jpeg[:2] + b"\xff" + jpeg[2:],
        "jpeg, fill byte after EXIF": jpeg.replace(b"\xff\xdb", b"\xff\xff\xdb", 1),
        "jpeg, bytes between segments": jpeg[:20] + b"\0\0" + jpeg[20:],
        "jpeg, XMP": encode(PHOTO, "JPEG", xmp=xmp(orientation)).replace(b"\xff\xdb", b"\xff\xff\xdb", 1),
        "png without an end": png[:-12],
        "png without an end, profile": png_text("tEXt", "Raw profile type exif", raw_profile(orientation))[:-12],
        "avif": encode(PHOTO, "AVIF", exif=exif(orientation)),
    }


@pytest.mark.parametrize("orientation", [1, 2, 6, 8])
@pytest.mark.parametrize("operations", [[], [CenterCrop((9, 5))]], ids=["plain", "crop"])
def test_images_whose_headers_only_pil_reads_are_turned(orientation: int, operations: list[CenterCrop]) -> None:
    options = {**UPRIGHT, "operations": operations}
    for name, data in irregular(orientation).items():
        header = screen_image(data)
        assert (header.orientation, header.width, header.height, header.dali_decodable) == (orientation, 21, 14, False)
        with Image.open(BytesIO(data)) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        wanted = SampleDecoder(image_decode="rgb8", operations=operations).decode("png", encode(upright, "PNG"))
        for decoder in (DaliDecoder(image_decode_device="cpu", **options), SampleDecoder(**options)):  # type: ignore[arg-type]
            np.testing.assert_array_equal(decoder.decode("jpg", data), wanted, err_msg=name)


@pytest.mark.parametrize("name", ["jpeg, fill byte", "avif"])
def test_the_layout_of_a_front_end_is_that_of_the_turned_image(name: str) -> None:
    decoder = SampleDecoder(
        front_end=FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor"}),
        apply_exif_orientation=True,
    )
    handle = decoder.make_handle("jpg", irregular(6)[name])
    assert (handle.layout.width, handle.layout.height) == (14, 21)
    assert handle.decode().layout == handle.layout


def test_any_block_turns_images_alike() -> None:
    random = Random(3)
    places = (in_jpeg, in_jpeg, in_png)
    files = [
        random.choice(places)(*(random_directory(random) for _ in range(random.choice((1, 1, 1, 1, 2)))))
        for _ in range(600)
    ]
    dali, pil = DaliDecoder(image_decode_device="cpu", **UPRIGHT), SampleDecoder(**UPRIGHT)  # type: ignore[arg-type]
    passed_on = [data for data in files if screen_image(data).dali_decodable]
    outcomes = dali.decode_block([dali.stage("jpg", data) for data in passed_on])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns about odd metadata, which does not matter here
        for data, outcome in zip(passed_on, outcomes, strict=True):
            assert isinstance(outcome, Decoded)
            assert outcome.route == "dali-cpu"
            np.testing.assert_array_equal(outcome.value, pil.decode("jpg", data))
    assert sum(screen_image(data).orientation > 1 for data in passed_on) > 20
