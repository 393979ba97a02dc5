"""Reading a media file never opens other files that its content refers to."""

from __future__ import annotations

import io
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from energon_dali.av import AVDecoder, AVWebdatasetDecoder
from energon_dali.decode import SampleDecoder, VideoClips
from energon_dali.decode.media_filter import describe_av
from energon_dali.demuxers import DEMUXERS
from energon_dali.errors import DecodeError
from tests.av.corpus import VIDEOS, audio_file, video_file
from tests.av.mp4_boxes import rewrite

REFUSED = "must not reach outside itself|Invalid data"


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A video outside the dataset, in the current folder."""
    path = tmp_path / "secret.mp4"
    path.write_bytes(video_file("h264-mp4"))
    monkeypatch.chdir(tmp_path)
    return path


def list_of(kind: str, secret: Path) -> bytes:
    """Returns the content of a file that refers to another."""
    if kind == "ffconcat":
        return b"ffconcat version 1.0\nfile secret.mp4\n"
    if kind == "hls":
        return b"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nsecret.mp4\n#EXT-X-ENDLIST\n"
    return with_data_reference(secret.read_bytes(), str(secret))


def with_data_reference(data: bytes, path: str) -> bytes:
    """Returns a QuickTime file whose samples are in another file: an alias record (QuickTime File Format, "dref")."""
    name = path.encode()
    alias = bytes(10 + 1 + 27 + 12) + bytes([min(len(name), 63)]) + name[:63].ljust(63, b"\0") + bytes(16)
    alias += struct.pack(">HH", 1, 1) + bytes(16)
    alias += struct.pack(">HH", 2, len(name)) + name + bytes(len(name) & 1) + struct.pack(">hH", -1, 0)
    alias = alias.ljust(200, b"\0")
    table = struct.pack(">II", 0, 1) + struct.pack(">I4sI", len(alias) + 12, b"alis", 0) + alias
    return rewrite(data, {b"dinf": lambda _: struct.pack(">I4s", len(table) + 8, b"dref") + table})


@pytest.mark.parametrize("kind", ["ffconcat", "hls", "dref"])
@pytest.mark.parametrize("source", ["bytes", "stream", "path", "m3u8"])
def test_no_other_file_is_opened(kind: str, source: str, secret: Path) -> None:
    content = list_of(kind, secret)
    path = secret.with_name("video.m3u8" if source == "m3u8" else "video.mp4")
    path.write_bytes(content)
    given: Any = {"bytes": content, "stream": io.BytesIO(content)}.get(source, path)
    with AVDecoder(given) as decoder, pytest.raises(DecodeError, match=f"{REFUSED}|No frame"):
        decoder.get_video()


@pytest.mark.parametrize("name", ["concat:secret.mp4|secret.mp4", "subfile,,start,0,end,0,,:secret.mp4", "rtsp://x/y"])
def test_a_path_is_the_path_of_a_file(name: str, secret: Path) -> None:
    with AVDecoder(name) as decoder, pytest.raises(DecodeError, match="No such file"):
        decoder.get_video()
    secret.rename(name.replace("/", "_"))
    with AVDecoder(name.replace("/", "_")) as decoder:
        assert len(decoder.get_video().video_clips) == 1
    with AVDecoder(str(secret.parent)) as decoder, pytest.raises(DecodeError, match="Is a directory"):
        decoder.get_video()


def test_no_port_is_bound() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    content = f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\n"
    content += "a=rtpmap:96 H264/90000\n"
    with AVDecoder(content.encode()) as decoder, pytest.raises(DecodeError, match=REFUSED):
        decoder.get_metadata()


@pytest.mark.parametrize("kind", ["ffconcat", "dref"])
def test_every_way_to_a_video_refuses_them(kind: str, secret: Path) -> None:
    content = list_of(kind, secret)
    assert kind != "ffconcat" or describe_av(content) is None
    for decoder in (SampleDecoder(av_decode=VideoClips()), SampleDecoder(av_decode="torch")):
        with pytest.raises(DecodeError):
            decoder.decode("mp4", content)
    make: Any = AVWebdatasetDecoder(False, "pyav")
    with pytest.raises((DecodeError, StopIteration)):
        next(make("mp4", content).decode(video=0))


def test_what_datasets_hold_is_allowed() -> None:
    """Every format of the corpus, whatever its suffix."""
    for name, recipe in VIDEOS.items():
        if recipe.container in ("mp4", "mkv", "mov", "avi", "webm") and name.count("-") == 1:
            assert describe_av(video_file(name)) is not None
    for name in ("pcm16-wav", "flac", "mp3", "aac-adts", "opus-ogg"):
        assert describe_av(audio_file(name)) is not None


def test_no_demuxer_of_the_list_refers_to_anything() -> None:
    referring = {
        "concat",
        "dash",
        "hls",
        "sdp",
        "rtsp",
        "rtp",
        "sap",
        "imf",
        "image2",
        "vobsub",
        "mlv",
        "lavfi",
        "svg_pipe",
        "webm_dash_manifest",
        "avisynth",
        "vapoursynth",
        "alsa",
        "fbdev",
        "kmsgrab",
        "oss",
        "v4l2",
        "x11grab",
    }
    assert not referring & DEMUXERS
