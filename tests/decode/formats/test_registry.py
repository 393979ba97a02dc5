"""A new image format takes one object: every place that handles images asks the registry."""

from __future__ import annotations

import importlib
import pkgutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from energon_dali import DaliDecoder, SampleDecoder, SystemFileStore
from energon_dali.cli.media_options import check_image
from energon_dali.decode import Decoded, ImageHeader, MediaHandle, screen_image
from energon_dali.decode import formats as package
from energon_dali.decode.formats import (
    BUILT_IN,
    FORMATS,
    PIL_NAMES,
    SUFFIXES,
    Buffer,
    ImageFormat,
    IrregularHeaderError,
    register_format,
    unregister_format,
)
from energon_dali.decode.media_filter import MediaFilter
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.shards import WebdatasetFolder, prepare_dataset
from energon_dali.shards.prepare.media_tables import add_media_metadata
from tests.shards.tars import write_tar

PIXELS = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
"""uint8[H, W, 3]."""
FILE = b"PLAIN" + struct.pack("<HH", 7, 5) + PIXELS.tobytes()


class PlainImageFile(ImageFile.ImageFile):
    """PIL's reader of a made-up format: a signature, width, height, and raw RGB."""

    format = "PLAIN"
    format_description = "made up for this test"

    def _open(self) -> None:
        assert self.fp is not None
        if self.fp.read(5) != b"PLAIN":
            raise SyntaxError("not a PLAIN file")
        self._size = struct.unpack("<HH", self.fp.read(4))
        self._mode = "RGB"
        self.tile = [ImageFile._Tile("raw", (0, 0, *self._size), 9, ("RGB", 0, 1))]


def read_plain(data: Buffer) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 5)
    if len(data) < 9 + 3 * width * height:
        raise IrregularHeaderError
    return ImageHeader("plain", width, height)


PLAIN = ImageFormat(
    "plain",
    pil_names=("PLAIN",),
    suffixes=("plain",),
    signature=rb"PLAIN",
    read_header=read_plain,
    max_pixels_per_byte=1,
)


@pytest.fixture
def plain() -> Iterator[ImageFormat]:
    """Registers the format with PIL and here for one test."""
    Image.init()
    Image.register_open("PLAIN", PlainImageFile, lambda prefix: prefix.startswith(b"PLAIN"))
    register_format(PLAIN)
    find_part_kind.cache_clear()
    yield PLAIN
    unregister_format("plain")
    find_part_kind.cache_clear()
    del Image.OPEN["PLAIN"]
    Image.ID.remove("PLAIN")


@pytest.mark.usefixtures("plain")
def test_a_registered_format_is_screened() -> None:
    header = screen_image(FILE)
    assert (header.format, header.width, header.height, header.dali_decodable) == ("plain", 7, 5, False)
    with pytest.raises(DecodeError, match=r"15 bytes cannot hold 9000 x 9000 pixels: .*\(plain, screen\)"):
        screen_image(b"PLAIN" + struct.pack("<HH", 9000, 9000) + bytes(6))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("decoder", [SampleDecoder(image_decode="rgb8"), DaliDecoder(image_decode="rgb8")])
def test_a_registered_format_is_decoded(decoder: SampleDecoder | DaliDecoder) -> None:
    assert np.array_equal(decoder.decode("left.plain", FILE), PIXELS)
    handle = MediaHandle("plain", FILE, "plain", 7, 5, decoder.spec)
    (outcome,) = decoder.decode_block([handle])
    assert isinstance(outcome, Decoded)
    assert outcome.route == "pil"
    assert np.array_equal(outcome.value, PIXELS)


@pytest.mark.usefixtures("plain")
def test_a_registered_format_is_prepared_and_described(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"k.plain": FILE, "k.txt": b"text", "m.plain": FILE[:50]})
    result = prepare_dataset(tmp_path, check_part=check_image, media_filter=MediaFilter("EXTENSION"))
    assert not result.unreadable
    index = WebdatasetFolder(str(tmp_path)).index
    extents = index.shard(0)
    assert [extents.formats[number] for number in extents.part_format] == ["plain", "", "plain"]
    assert (extents.array("part_width").tolist(), extents.array("part_height").tolist()) == ([7, 0, 7], [5, 0, 5])
    index.close()
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "k.plain").write_bytes(FILE)
    assert add_media_metadata(str(folder), MediaFilter("EXTENSION")).described == 1
    found = SystemFileStore(folder).get_media_metadata("k.plain")
    assert (found.width, found.height, found.format) == (7, 5, "PLAIN")  # type: ignore[union-attr]


def test_an_unregistered_format_is_bytes() -> None:
    assert SampleDecoder().decode("k.plain", FILE) == FILE
    with pytest.raises(DecodeError, match="does not recognise this as an image"):
        screen_image(FILE)


def test_every_module_of_a_format_is_listed() -> None:
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, ImageFormat)]
    assert len(found) >= 7
    assert all(format in BUILT_IN for format in found)


def test_tables_agree_with_each_other_and_with_pil() -> None:
    Image.init()
    # PIL opens MPO by its JPEG plugin, and may be built without AVIF.
    assert PIL_NAMES.keys() - set(Image.ID) <= {"AVIF", "MPO"}
    assert len(SUFFIXES) == sum(len(known.suffixes) for known in FORMATS.values())
    for known in FORMATS.values():
        assert FORMATS[known.name] is known
        assert known.read_header is None or known.signature


def test_names_and_suffixes_belong_to_one_format() -> None:
    with pytest.raises(ConfigError, match="The suffix 'png' of 'mine' already belongs to 'png'"):
        register_format(ImageFormat("mine", suffixes=("png",)))
    with pytest.raises(ConfigError, match="The PIL name 'PNG' of 'mine' already belongs to 'png'"):
        register_format(ImageFormat("mine", pil_names=("PNG",)))
    with pytest.raises(ConfigError, match="Give an identifier"):
        register_format(ImageFormat("no name"))
    assert "mine" not in FORMATS


def test_a_label_keeps_what_routing_needs() -> None:
    header = ImageHeader("png", 4, 3, 4, 8, True, 6, "palette", dali_decodable=True)
    kept = ImageHeader.from_label(header.to_label(), 4, 3)
    assert kept is not None
    assert (kept.format, kept.has_alpha, kept.orientation, kept.color, kept.dali_decodable) == (
        "png",
        True,
        6,
        "palette",
        True,
    )
    assert ImageHeader.from_label(ImageHeader("png", 4, 3).to_label(), 4, 3) is None


def test_reading_headers_does_not_import_dali(tmp_path: Path) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    script = (
        "import sys\n"
        "from energon_dali.decode import screen_image\n"
        f"header = screen_image(open({str(tmp_path / 'a.png')!r}, 'rb').read())\n"
        "assert (header.width, header.height, header.dali_decodable) == (4, 3, True)\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'nvidia']\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)
