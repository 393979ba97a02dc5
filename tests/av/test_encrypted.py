"""Encrypted streams are refused in words: FFmpeg hands their packets to the decoder, which makes noise of some."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_dali import DaliDecoder, SampleDecoder
from energon_dali.av import AVDecoder
from energon_dali.decode.clips import ClipAudio, VideoClips
from energon_dali.errors import DecodeError
from tests.av.corpus import VIDEOS, encode_video, video_file
from tests.av.matroska_elements import (
    ALGORITHM,
    COMPRESSION,
    ENCODING,
    ENCODING_TYPE,
    ENCRYPTION,
    KEY,
    element,
    with_encodings,
)

CENC = (
    ("encryption_scheme", "cenc-aes-ctr"),
    ("encryption_key", "00112233445566778899aabbccddeeff"),
    ("encryption_kid", "112233445566778899aabbccddeeff00"),
)
FRAGMENTS = (("movflags", "frag_keyframe+empty_moov"),)
AES = element(ENCRYPTION, element(ALGORITHM, b"\5") + element(KEY, b"key"))


def encrypted_mp4(**changes: Any) -> bytes:
    return encode_video(replace(VIDEOS["h264-aac-mp4"], **changes))


@pytest.mark.parametrize("options", [CENC, CENC + FRAGMENTS], ids=["whole", "fragmented"])
def test_common_encryption(options: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    data = encrypted_mp4(muxer_options=options)
    file = tmp_path / "video.mp4"
    file.write_bytes(data)
    for source in (data, str(file)):
        with AVDecoder(source) as decoder:
            assert decoder.has_video_stream()
            assert decoder.has_audio_stream()
            with pytest.raises(DecodeError, match=r"Its video stream is encrypted.*\(h264, pyav\)"):
                decoder.get_video()
            with pytest.raises(DecodeError, match=r"Its audio stream is encrypted.*\(aac, pyav\)"):
                decoder.get_audio()
    for clips in (VideoClips(1, 2), VideoClips(1, 2, audio=ClipAudio(16000, 1, 0.5))):
        for decoder in (SampleDecoder(av_decode=clips), DaliDecoder(video_decode_device="cpu", av_decode=clips)):
            with pytest.raises(DecodeError, match="Part 'mp4': Its video stream is encrypted"):
                decoder.decode("mp4", data)


@pytest.mark.parametrize("entry", [b"enca", b"drms"])
def test_video_whose_audio_is_encrypted(entry: bytes) -> None:
    plain = video_file("h264-aac-mp4")
    assert plain.count(b"mp4a") == 1
    data = plain.replace(b"mp4a", entry)
    with AVDecoder(data) as decoder, AVDecoder(plain) as other:
        np.testing.assert_array_equal(decoder.get_video().video_clips[0], other.get_video().video_clips[0])
        with pytest.raises(DecodeError, match="Its audio stream is encrypted"):
            decoder.get_audio()
    assert SampleDecoder(av_decode=VideoClips(1, 2)).decode("mp4", data).frames.shape[0] == 1
    with pytest.raises(DecodeError, match="Its audio stream is encrypted"):
        SampleDecoder(av_decode=VideoClips(1, 2, audio=ClipAudio(16000, 1, 0.5))).decode("mp4", data)


@pytest.mark.parametrize("name", ["vp9-opus-webm", "h264-opus-mkv"])
@pytest.mark.parametrize("track", [1, 2])
def test_matroska(name: str, track: int) -> None:
    encoding = element(ENCODING, element(ENCODING_TYPE, b"\1") + AES)
    with AVDecoder(with_encodings(video_file(name), track, encoding)) as decoder, AVDecoder(video_file(name)) as other:
        for number, kind in enumerate(("video", "audio"), 1):
            read = getattr(decoder, f"get_{kind}")
            if number == track:
                with pytest.raises(DecodeError, match=f"Its {kind} stream is encrypted"):
                    read()
            else:
                (found,), (wanted,) = (
                    getattr(getattr(each, f"get_{kind}")(), f"{kind}_clips") for each in (decoder, other)
                )
                np.testing.assert_array_equal(found, wanted)


def test_compressed_matroska_is_not_encrypted() -> None:
    """By header stripping of no bytes, which leaves the packets as they are."""
    stripping = element(COMPRESSION, element(b"\x42\x54", b"\3"))
    data = with_encodings(video_file("vp9-opus-webm"), 1, element(ENCODING, element(ENCODING_TYPE, b"\0") + stripping))
    with AVDecoder(data) as decoder:
        assert decoder.get_video().video_clips[0].shape[0] == 60
