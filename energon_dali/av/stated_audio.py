"""Audio files whose header states how many samples they have, so that no packet is read to count them: WAV and FLAC.

What the header states is compared with the file: the samples of WAV must be there, and the last frame of FLAC must end
where the header says. Of other files the packets are counted. Samples of WAV are then read from the file's bytes, and
FLAC is decoded from its first packet.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.audio_packets import (
    AudioRange,
    IndexWrongError,
    Samples,
    demux,
    read_channels,
    select,
)
from energon_dali.av.container import MediaFile
from energon_dali.av.flac_frames import FEWEST_BYTES, LONGEST_HEADER, find_samples
from energon_dali.av.media_source import view_bytes

_LAYOUTS = {1: "mono", 2: "stereo"}
"""FFmpeg's names of the layouts of FLAC. WAV without a mask of channels does not say how they are placed."""
_WAV_TYPES = {(1, 16): ("s16", "<i2"), (3, 32): ("flt", "<f4")}
"""FFmpeg's name and NumPy's type of samples, by the format tag and the bits of a sample."""
_CARRIED = tuple(map(bytes.fromhex, ("72f81f4e", "f8724e1f", "fe7f0180", "7ffe8001", "ff1f00e8", "1fffe800")))
"""How packets of other codecs begin, which some WAV files carry as if they were samples: IEC 61937, DTS."""
_SEARCHED = 1 << 16
"""Bytes of samples in which FFmpeg looks for the beginning of such a packet."""
_TAIL = 1 << 16
"""Bytes at the end of a FLAC file in which its last frame must begin."""
_MOST_SAMPLES = 1 << 16
"""Samples of the longest frame of FLAC."""


@dataclass(frozen=True, slots=True)
class StatedAudio:
    """What the header of a file states."""

    format: str
    """FFmpeg's name of the container's format: "wav" or "flac"."""
    index: AudioIndex
    """The samples of the file, without packets."""
    offset: int | None
    """Byte at which the samples of WAV begin; None where they are decoded, from the first one on."""


def find_stated_audio(data: memoryview) -> StatedAudio | None:
    """Returns what the header of a file states, if it is known to be true; None for all other files.

    Args:
        data: The bytes of the file.
    """
    start = bytes(data[:12])
    if start.startswith(b"fLaC"):
        return _find_flac(data)
    if start.startswith(b"RIFF") and start.endswith(b"WAVE"):
        return _find_wav(data)
    return None


def fill_stated(file: MediaFile, index: AudioIndex, parts: list[AudioRange]) -> None:
    """Fills ranges of samples of a file, inside `MediaFile.used`.

    Args:
        file: The file, in memory.
        index: That of `find_stated_audio`.
        parts: The ranges; of FLAC, each begins with the first sample.

    Raises:
        IndexWrongError: The file is not what its header states.
        DecodeError: A packet cannot be decoded.
    """
    with view_bytes(file.source) as data:
        stated = None if data is None else find_stated_audio(data)
        if stated is None:
            raise IndexWrongError
        for part in parts:
            if stated.offset is None:
                _decode(file, index, part)
            else:
                assert data is not None
                count = (part.stop - part.start) * index.channels
                first = stated.offset + part.start * index.channels * index.dtype.itemsize
                samples: Samples = np.frombuffer(data, index.dtype, count, first)
                part.samples[:] = samples.reshape(-1, index.channels).T


def _decode(file: MediaFile, index: AudioIndex, part: AudioRange) -> None:
    """Decodes from the first packet up to the last sample of a range, which begins with the first one."""
    if part.start:
        raise IndexWrongError
    facts = file.decodable_stream("audio")
    context = select(file, file.rewind(), facts.position)
    context.copy_opaque = False  # frames are in order, and need no mark
    at, wanted = 0, (index.rate, index.sample_format, index.layout)
    for packet in chain(demux(file, facts.position), (None,)):
        for frame in context.decode(packet):
            if (frame.sample_rate, frame.format.name, frame.layout.name) != wanted:
                raise IndexWrongError
            stop = min(at + frame.samples, part.stop)
            samples = np.frombuffer(frame.planes[0], index.dtype) if index.channels == 1 else read_channels(frame)
            part.samples[:, at:stop] = samples[..., : stop - at]
            at = stop
        if at == part.stop:
            return
    raise IndexWrongError


def _find_wav(data: memoryview) -> StatedAudio | None:
    """Returns what the header of a WAV file states, if one chunk has all samples, and nothing but samples."""
    at, form = 12, b""
    while at + 8 <= len(data):
        name, size = bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        if size % 2 or at + size > len(data):
            return None
        if name == b"data":
            break
        if name == b"fmt ":
            form = bytes(data[at : at + size])
        at += size
    else:
        return None
    if len(form) < 16 or not size or b"data" in bytes(data[at + size :]):
        return None
    tag, channels, rate = (int.from_bytes(form[start:stop], "little") for start, stop in ((0, 2), (2, 4), (4, 8)))
    bits = int.from_bytes(form[14:16], "little")
    if (tag, bits) not in _WAV_TYPES or not 1 <= channels <= 2 or not rate or size % (channels * bits // 8):
        return None
    first = bytes(data[at : at + min(size, _SEARCHED)])
    if tag == 1 and any(sign in first for sign in _CARRIED):
        return None
    kind, dtype = _WAV_TYPES[tag, bits]
    index = _index(8 * size // bits // channels, rate, channels, f"{channels} channels", kind, dtype)
    return StatedAudio("wav", index, at)


def _find_flac(data: memoryview) -> StatedAudio | None:
    """Returns what the header of a FLAC file states, if its first frame is sample 0 and its last one ends as stated."""
    if len(data) < 64 or data[4] & 0x7F or int.from_bytes(data[5:8], "big") != 34:
        return None
    stated = int.from_bytes(data[18:26], "big")  # 20 bits of rate, 3 of channels, 5 of bits, 36 of samples
    rate, channels, bits, total = stated >> 44, (stated >> 41 & 7) + 1, (stated >> 36 & 31) + 1, stated & (1 << 36) - 1
    block, at, is_last = int.from_bytes(data[8:10], "big"), 42, data[4] >> 7
    while not is_last and at + 4 <= len(data):
        is_last = data[at] >> 7
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
    if not rate or not 0 < total <= len(data) // FEWEST_BYTES * _MOST_SAMPLES or channels not in _LAYOUTS:
        return None
    first = find_samples(bytes(data[at : at + LONGEST_HEADER]), block)
    tail = bytes(data[max(at, len(data) - _TAIL) :])
    if first is None or first[0] or _find_end(tail, bytes(data[at : at + 2]), block) != total:
        return None
    kind, dtype = ("s16", "<i2") if bits <= 16 else ("s32", "<i4")
    return StatedAudio("flac", _index(total, rate, channels, _LAYOUTS[channels], kind, dtype), None)


def _find_end(tail: bytes, sync: bytes, block: int) -> int | None:
    """Returns the sample, exclusive, at which the last frame ends whose header is in the bytes; None if there is none.

    Args:
        tail: The last bytes of the file.
        sync: How its frames begin.
        block: Samples of its frames.
    """
    at = tail.rfind(sync)
    while at >= 0:
        found = find_samples(tail[at : at + LONGEST_HEADER], block)
        if found is not None:
            return sum(found)
        at = tail.rfind(sync, 0, at + 1)
    return None


def _index(samples: int, rate: int, channels: int, layout: str, kind: str, dtype: str) -> AudioIndex:
    none = np.empty(0, np.int64)
    starts = np.array([0, samples], np.int64)
    return AudioIndex(starts, none, none, rate, channels, layout, kind, np.dtype(dtype), starts[:1], np.zeros(1))
