"""PIL's `load` decides which images are damaged, and every route agrees (docs/damaged-images.md)."""

from __future__ import annotations

import struct
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from energon_dali.decode import screen_image
from tests.decode.agreement import compare, compare_apart, damaged_files, load_by_pil
from tests.decode.damage import SEGMENTS
from tests.decode.sample_images import encode, exif, photograph, sample_images

PHOTO = photograph(size=(61, 45))


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("count", [120, pytest.param(300, marks=pytest.mark.sweep)])
def test_all_routes_agree_on_damaged_images(count: int) -> None:
    """To test more: python -m tests.decode.agreement --count 20000 --seed 7."""
    files = damaged_files(count, 0)
    assert {name for name, _ in files} == set(sample_images())
    verdicts = [load_by_pil(data) == "" for _, data in files]
    assert count / 6 < sum(verdicts) < count * 5 / 6, "good and damaged files are to be seen"
    assert [f"{found.name}: {found.what}" for found in compare_apart(files)] == []


@pytest.mark.usefixtures("warm_workers")
def test_all_routes_agree_on_images_that_were_cut() -> None:
    """With and without their last bytes, which remain if only the middle is lost."""
    files = []
    for name, data in {
        "baseline": encode(PHOTO, "JPEG"),
        "progressive": encode(PHOTO, "JPEG", progressive=True),
        "restarts": encode(PHOTO, "JPEG", restart_marker_blocks=2),
        "png": encode(PHOTO, "PNG"),
        "webp": encode(PHOTO, "WEBP"),
        "tiff": encode(PHOTO, "TIFF"),
        "bmp": encode(PHOTO, "BMP"),
    }.items():
        for percent in (3, 17, 40, 66, 90, 99):
            cut = data[: len(data) * percent // 100]
            files += [(name, cut), (name, cut + data[-2:]), (name, cut + data[-12:])]
        files += [(name, data[:-1]), (name, data[:-2]), (name, data + b"more")]
    verdicts = [load_by_pil(data) == "" for _, data in files]
    assert 10 < sum(verdicts) < 120
    assert [f"{found.name}: {found.what}" for found in compare_apart(files)] == []


def test_good_jpegs_are_not_suspected() -> None:
    """Good files reach DALI even with restarts, several scans, or data after the end."""
    for name, data in sample_images().items():
        if name.startswith("jpeg") and name != "jpeg-cmyk":
            for more in (b"", b"\0" * 9, b"\xff\xd9", data):
                assert screen_image(data + more).dali_decodable, name
    for rows in range(1, 5):
        for progressive in (False, True):
            data = encode(PHOTO, "JPEG", restart_marker_rows=rows, progressive=progressive)
            assert screen_image(data).dali_decodable, (rows, progressive)


def with_marker(data: bytes, position: int, marker: int) -> bytes:
    return data[:position] + bytes([0xFF, marker]) + data[position + 2 :]


def test_jpegs_whose_markers_are_out_of_order_are_left_to_pil() -> None:
    whole, progressive = encode(PHOTO, "JPEG"), encode(PHOTO, "JPEG", progressive=True)
    restarts = encode(PHOTO, "JPEG", restart_marker_blocks=2)
    middle = len(whole) - 99
    suspects = [with_marker(whole, middle, marker) for marker in (0x01, 0x3F, 0xC4, 0xD0, 0xD8, 0xDA, 0xDC, 0xE0, 0xFF)]
    suspects += [whole[:-2], whole[:-1], whole[: whole.index(b"\xff\xda") + 14]]
    first, second = restarts.index(b"\xff\xd0"), restarts.index(b"\xff\xd1")
    suspects += [with_marker(restarts, first, 0xD1), with_marker(restarts, second, 0xD5)]
    scans = [position for position in range(len(progressive)) if progressive[position : position + 2] == b"\xff\xda"]
    suspects += [progressive[:scan] + b"\xff\xd9" for scan in scans[1:]]  # scans are missing
    suspects += [progressive[: scan + 2] + b"\xff\xff" + progressive[scan + 4 :] for scan in scans[1:]]
    # The coarse and the fine scan of one colour, swapped: libjpeg smooths the one that it considers coarse.
    coarse, fine = (progressive.index(bytes.fromhex(scan)) for scan in ("ffda0008010201013f01", "ffda0008010201013f10"))
    parts = [progressive[start : scans[scans.index(start) + 1]] for start in (coarse, fine)]
    suspects.append(progressive.replace(parts[0], b"*").replace(parts[1], parts[0]).replace(b"*", parts[1]))
    for number, data in enumerate(suspects):
        assert not screen_image(data).dali_decodable, number


def test_a_size_that_no_decoder_would_pay_for_is_left_to_pil() -> None:
    """A JPEG and a TIFF that claim more pixels than they have: every route fills them with gray and black, as PIL
    does."""
    jpeg, tiff = encode(PHOTO.resize((8, 8)).convert("L"), "JPEG"), encode(PHOTO, "TIFF")
    frame = jpeg.index(b"\xff\xc0")
    jpeg = jpeg[: frame + 5] + struct.pack(">HH", 1000, 1000) + jpeg[frame + 9 :]
    height = struct.pack("<HHI", 257, 4, 1)
    tiff = tiff.replace(height + struct.pack("<I", 45), height + struct.pack("<I", 1000))
    assert len(jpeg) * 2048 < 1000 * 1000  # more than a larger JPEG could contain
    for name, data in (("jpeg", jpeg), ("tiff", tiff)):
        assert load_by_pil(data) == ""
        with Image.open(BytesIO(data)) as image:
            assert image.height == 1000
        assert list(compare([(name, data)], ("plain", "resized-crop"))) == []


def test_a_palette_without_colours_is_black() -> None:
    """PIL loads the file, DALI refuses it."""
    data = encode(PHOTO.convert("P"), "PNG")
    start = data.index(b"PLTE") - 4
    size = struct.unpack_from(">I", data, start)[0]
    data = data[:start] + data[start + 12 + size :]
    with Image.open(BytesIO(data)) as image:
        assert not np.asarray(image.convert("RGB")).any()
    assert list(compare([("png", data)], ("plain", "alpha", "crop"))) == []


def test_damage_is_the_same_on_every_machine() -> None:
    assert damaged_files(40, 3) == damaged_files(40, 3)
    assert damaged_files(40, 3) != damaged_files(40, 4)
    assert all(name.startswith("png") for name, _ in damaged_files(20, 0, "png"))


def test_jpegs_with_too_many_or_too_few_restarts_are_left_to_pil() -> None:
    """A repeated range: the scan begins again, and the restarts are still in order."""
    whole = encode(PHOTO, "JPEG", restart_marker_blocks=2)
    scan = whole.index(b"\xff\xda")
    last = max(whole.rfind(bytes([0xFF, 0xD0 + number])) for number in range(8))
    for cut in range(scan + 200, last, 97):
        assert not screen_image(whole[:cut] + whole[scan:]).dali_decodable, cut


def with_segments(*segments: tuple[int, bytes]) -> bytes:
    """Returns a JPEG whose segments begin with the given ones."""
    data = encode(PHOTO, "JPEG")
    more = [bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content for marker, content in segments]
    return data[:2] + b"".join(more) + data[20:]  # without its JFIF segment


@pytest.mark.filterwarnings("ignore::UserWarning")  # PIL warns of odd metadata
@pytest.mark.parametrize("more", [(), ((0xE1, exif(1)),)], ids=["alone", "before EXIF"])
def test_jpegs_that_pil_refuses_because_a_segment_is_cut_are_left_to_it(more: tuple[tuple[int, bytes], ...]) -> None:
    """Segments of applications, which DALI skips."""
    refused = set()
    for marker, content in SEGMENTS:
        for end in range(len(content) if marker >= 0xE0 else 0):
            data = with_segments((marker, content[:end]), *more)
            if load_by_pil(data):
                assert not screen_image(data).dali_decodable, (content[:5], end)
                refused.add(content[:5])
    assert refused == {b"JFIF\0", b"Adobe", b"ICC_P", b"Photo"}


def test_jpegs_with_whole_segments_reach_dali() -> None:
    resources = [b"8BIM\4\4" + name + struct.pack(">I", 3) + b"abc\0" for name in (b"\0\0", b"\5title", b"\4name\0")]
    photoshop = [(0xED, b"Photoshop 3.0\0" + resource * 2) for resource in resources]
    cut = [
        (0xED, b"Photoshop 3.0\0" + resource + resource[:-3]) for resource in resources
    ]  # the next segment continues
    others = [(marker, content) for marker, content in SEGMENTS if marker not in (0xDE, 0xE1)]
    for marker, content in (*others, *photoshop, *cut):
        data = with_segments((marker, content))
        assert load_by_pil(data) == ""
        assert screen_image(data).dali_decodable, content


def test_a_resolution_that_is_not_a_fraction_is_left_to_pil() -> None:
    """PIL reads the resolution in EXIF when it opens a file without JFIF, and refuses one that is a short text."""
    text, raw, fraction = 2, 7, 5
    for kind in (text, raw, fraction):
        entries = struct.pack(">HHII", 0x011A, kind, 1, 38 if kind == fraction else ord("7") << 24)
        entries += struct.pack(">HHIHH", 0x0128, 3, 1, 2, 0)
        block = b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + entries + bytes(4) + struct.pack(">II", 72, 1)
        data = with_segments((0xE1, block))
        assert screen_image(data).dali_decodable == (kind == fraction)
        assert bool(load_by_pil(data)) == (kind != fraction), kind
