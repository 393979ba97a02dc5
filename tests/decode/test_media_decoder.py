"""All decoders choose by suffix as webdataset does, with documented exceptions."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from webdataset.autodecode import IMAGE_EXTENSIONS

from energon_dali.decode import HorizontalFlip, RandomResizedCrop, Resize, SampleDecoder
from energon_dali.decode.media_decoder import DecoderOptions
from energon_dali.decode.part_kind import IMAGE_SUFFIXES, find_part_kind
from energon_dali.demuxers import AV_SUFFIXES
from energon_dali.errors import ConfigError, DecodeError
from tests.decode.sample_images import broken_images, sample_images

JPEG = sample_images()["jpeg-420"]


def test_image_suffixes_against_webdataset() -> None:
    assert set(IMAGE_EXTENSIONS) - IMAGE_SUFFIXES == {"mpg", "mpeg", "h5", "hdf", "bufr", "grib"}
    assert IMAGE_SUFFIXES - set(IMAGE_EXTENSIONS) == {"avif", "avifs", "mpo", "qoi"}
    assert not IMAGE_SUFFIXES & AV_SUFFIXES


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("jpg", ("image", "jpg")),
        ("JPG", ("image", "JPG")),
        ("left.png", ("image", "png")),
        ("train/0001.jpg", ("image", "jpg")),
        ("a.b/0001.seg.webp", ("image", "webp")),
        ("a.jpg/0001", ("basic", "")),
        ("json", ("basic", "json")),
        ("TXT", ("basic", "TXT")),
        ("x.mp4", ("av", "mp4")),
        ("mpeg", ("av", "mpeg")),
        ("h5", ("basic", "h5")),
        ("", ("basic", "")),
    ],
)
def test_find_part_kind(name: str, kind: tuple[str, str]) -> None:
    assert find_part_kind(name) == kind


def test_a_whole_sample() -> None:
    decoder = SampleDecoder(image_decode="rgb8")
    sample = decoder(
        {
            "__key__": "0001",
            "jpg": JPEG,
            "json": b'{"a": 1}',
            "left.txt": b"hi",
            "info.json.gz": gzip.compress(b"[2]"),
            "bin": b"\0",
            "number": 3,
        }
    )
    assert sample.pop("jpg").shape == (118, 157, 3)
    assert sample == {
        "__key__": "0001",
        "json": {"a": 1},
        "left.txt": "hi",
        "info.json.gz": [2],
        "bin": b"\0",
        "number": 3,
    }


def test_views_are_taken_in_place_of_bytes() -> None:
    decoder = SampleDecoder(image_decode="rgb8")
    view = memoryview(bytearray(b"before" + JPEG))[6:]
    assert decoder.stage("jpg", view).tobytes() == decoder.stage("jpg", JPEG).tobytes()
    assert decoder.make_handle("jpg", view).data is view
    assert decoder.stage("txt", memoryview(b"words")) == "words"
    assert decoder.stage("txt.gz", memoryview(gzip.compress(b"words"))) == "words"
    assert type(decoder.stage("bin", memoryview(b"words"))) is bytes
    with pytest.raises(ConfigError, match=r"raw='data/photo.jpg' is text. Give the content of the file as bytes"):
        decoder.decode("photo.jpg", "data/photo.jpg")  # type: ignore[arg-type]


def test_compressed_parts_unpack_again_and_again() -> None:
    decoder = SampleDecoder(image_decode="rgb8", max_bytes=100_000)
    assert decoder.decode("jpg.gz.gz", gzip.compress(gzip.compress(JPEG))).shape == (118, 157, 3)
    assert decoder.decode("gz", gzip.compress(b"raw")) == b"raw"
    with pytest.raises(DecodeError, match=r"Part .txt\.gz.: The unpacked content has more than max_bytes=100,000"):
        decoder.decode("txt.gz", gzip.compress(bytes(100_001)))


@pytest.mark.parametrize("name", broken_images())
def test_errors_name_the_part(name: str) -> None:
    with pytest.raises(DecodeError, match=r"^Part .left\.jpg.: ") as caught:
        SampleDecoder()({"__key__": "0001", "left.jpg": broken_images()[name]})
    assert caught.value.route in ("screen", "pil")


def test_stage_draws_from_the_seed() -> None:
    decoder = SampleDecoder(image_decode="rgb8", operations=[RandomResizedCrop(32), HorizontalFlip()])
    values = {decoder.stage("jpg", JPEG, seed=seed).tobytes() for seed in (1, 2, 3, 1, 2, 3)}
    assert len(values) == 3
    assert decoder.decode("jpg", JPEG).tobytes() == decoder.stage("jpg", JPEG, seed=0).tobytes()


def test_guess_content() -> None:
    decoder = SampleDecoder(image_decode="rgb8", guess_content=True)
    assert decoder.decode("bin", JPEG).shape == (118, 157, 3)
    assert decoder.decode("a/no-suffix", sample_images()["png-rgb"]).shape == (118, 157, 3)
    assert decoder.decode("json", b"[1]") == [1]
    assert decoder.decode("txt", b"words") == "words"
    assert SampleDecoder().decode("bin", JPEG) == JPEG


def test_guess_content_needs_filetype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "filetype", None)
    with pytest.raises(ConfigError, match="pip install filetype"):
        SampleDecoder(guess_content=True)
    assert SampleDecoder().guess_content is False


def test_options() -> None:
    with pytest.raises(ConfigError, match=r"av_decode=.cv2. is unknown.*AVDecoder, torch, pyav"):
        SampleDecoder(av_decode="cv2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="image_decode='bgr'"):
        SampleDecoder(image_decode="bgr")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        SampleDecoder("torchrgb")  # type: ignore[misc]
    decoder = SampleDecoder(
        image_decode="torchrgb8", operations=[Resize((3, 4))], image_layout="HWC", max_pixels=9, video_decode_audio=True
    )
    config = decoder.config()
    assert set(config) == set(DecoderOptions.__annotations__)
    assert json.loads(json.dumps(config)) == config
    assert config["operations"] == [{"type": "Resize", "size": [3, 4], "interpolation": "bilinear", "antialias": True}]
    assert "image_decode='torchrgb8'" in repr(decoder)


def test_a_decoder_travels() -> None:
    decoder = SampleDecoder(operations=[RandomResizedCrop(16)])
    decoder.decode("jpg", JPEG)
    again = pickle.loads(pickle.dumps(decoder))
    assert again.config() == decoder.config()
    assert again.decode("jpg", JPEG).equal(decoder.decode("jpg", JPEG))
    assert len(pickle.dumps(decoder)) < 2000


class OfItsOwn(SampleDecoder):
    def decode(self, fname: str, raw: bytes) -> Any:
        return fname, raw


class Staging(SampleDecoder):
    def stage(self, name: str, raw: Any, **options: Any) -> Any:
        return name, bytes(raw)


@pytest.mark.parametrize("name", ["json", "left.txt", "cls", "meta/0001.json", "npy", "jsn"])
def test_a_plain_reader_gives_what_the_decoder_gives(name: str) -> None:
    contents = {"json": b'{"a": [1, null]}', "txt": b"text", "cls": b" 7", "npy": npy(), "jsn": b"[]"}
    content = contents[name.rpartition(".")[2]]
    decoder = SampleDecoder()
    read = decoder.plain_reader(name)
    assert read is not None
    assert np.array_equal(read(content), decoder.decode_part(name, content))
    for other in (OfItsOwn(), Staging(), SampleDecoder(guess_content=True)):
        assert other.plain_reader(name) is None, "something else decides"


@pytest.mark.parametrize("name", ["jpg", "mp4", "json.gz", "pth", "pkl", "npz", "unknown", "wav"])
def test_media_and_what_needs_a_limit_have_no_plain_reader(name: str) -> None:
    assert SampleDecoder().plain_reader(name) is None


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()
