"""Decodes recordings with PyAV for audio front ends: counts their samples first, and reads only those of a segment."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from energon_dali.av import AudioReader, AVLimits, MediaFile
from energon_dali.av.audio_index import AudioIndex
from energon_dali.av.media_index import MediaIndex
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.av.stated_audio import find_stated_audio
from energon_dali.decode.audio_front_ends.audio_front_end import AudioFrontEnd, AudioInput
from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle, AudioSpec
from energon_dali.decode.interface import Decoded, DecodeFailure, Outcome, Route
from energon_dali.decode.pyav import as_float
from energon_dali.errors import DecodeError
from energon_dali.samples.base import SourceInfo

ROUTE: Route = "pyav"
_MOST_KEPT_PACKETS = 4096
"""Packets up to which a handle keeps its index, of 24 bytes each, while it waits to be decoded."""


def stage_recording(
    name: str,
    raw: bytes | memoryview | SparseMedia,
    spec: AudioSpec,
    *,
    seed: int = 0,
    source: SourceInfo | None = None,
    limits: AVLimits | None = None,
    of_videos: bool = False,
) -> tuple[AudioHandle | list[AudioHandle] | None, bool]:
    """Returns the handle of a recording, or one for each of its segments, and whether the file has video.

    There is no handle, but None, for a video without audio, and for all videos unless `of_videos` is set.

    Args:
        name: Part name.
        raw: The file, or its index with some of its bytes; the handles keep a view of it.
        spec: What recordings become.
        seed: Determines random segments.
        source: Where it came from, for messages.
        limits: Limits for decoding; None for the defaults.
        of_videos: Whether the audio of videos is taken too.

    Raises:
        DecodeError: The file cannot be opened, or the front end refuses recordings of its length, or all of its
            segments are beyond the limits.
    """
    stated = None if isinstance(raw, SparseMedia) else find_stated_audio(memoryview(raw))
    if stated is not None:
        spans = _choose(stated.index, spec, seed, limits)
        if stated.offset is not None or not any(start for start, _ in spans):
            make = partial(_make_handles, name, raw, stated.format, spec, stated.index, spans)
            return make(seed=seed, source=source, limits=limits), False
    with MediaFile(raw, limits=limits) as file:
        try:
            has_video = file.find_stream("video") is not None
            if has_video and not (of_videos and file.find_stream("audio") is not None):
                return None, True
            index = _reader(file, spec.front_end).index
        except DecodeError as error:
            raise DecodeError(error.reason, error.format or file.format, error.route or ROUTE) from error
        make = partial(_make_handles, name, raw, file.format, spec, index, _choose(index, spec, seed, limits))
    return make(seed=seed, source=source, limits=limits), has_video


def _make_handles(
    name: str,
    raw: bytes | memoryview | SparseMedia,
    format: str,
    spec: AudioSpec,
    index: AudioIndex,
    spans: list[tuple[int, int]],
    *,
    seed: int,
    source: SourceInfo | None,
    limits: AVLimits | None,
) -> AudioHandle | list[AudioHandle]:
    """Returns the handle of the segment of a recording, or those of all of them.

    Raises:
        DecodeError: The front end refuses recordings of its length.
    """
    handles = [
        AudioHandle(
            name,
            raw,
            format,
            0,
            0,
            spec,
            seed=seed,
            source=source,
            start_sample=start,
            num_samples=stop - start,
            limits=limits,
            index=index if len(index.pts) <= _MOST_KEPT_PACKETS else None,
        )
        for start, stop in spans
    ]
    try:
        for handle in handles:
            handle.layout  # noqa: B018 - raises if the front end refuses the length
    except DecodeError as error:
        raise DecodeError(error.reason, error.format or format, error.route or ROUTE) from error
    return handles if spec.segments == "all" else handles[0]


def _choose(index: AudioIndex, spec: AudioSpec, seed: int, limits: AVLimits | None) -> list[tuple[int, int]]:
    """Returns (start, stop) of the segments of a recording, at the rate of the front end.

    Raises:
        DecodeError: All of them are asked for, and together they have more samples than the limits allow.
    """
    samples, most = index.count_at(spec.front_end.sampling_rate), (limits or AVLimits()).max_audio_samples
    if spec.segments == "all" and samples > most:
        raise DecodeError(
            f'All segments of {samples:,} samples are beyond AVLimits(max_audio_samples={most:,}). Use "first" or '
            '"random" as audio_segments, or raise the limit',
            route=ROUTE,
        )
    return spec.choose(samples, seed)


def find_recording_packets(
    name: str, index: MediaIndex, spec: AudioSpec, *, seed: int, limits: AVLimits | None
) -> list[tuple[int, int]]:
    """Returns (offset, size) of the packets of the segments of a recording, from its index; none if they will fail.

    Args:
        name: Part name.
        index: The stored index of the file.
        spec: What recordings become.
        seed: Determines random segments; that of `stage_recording`.
        limits: Limits for decoding; None for the defaults.
    """
    assert index.audio is not None
    try:
        media = SparseMedia(index)
        staged, _ = stage_recording(name, media, spec, seed=seed, limits=limits, of_videos=True)
        handles = staged if isinstance(staged, list) else [staged]
        ranges = [_range(handle) for handle in handles if handle is not None and _range(handle)[1] > _range(handle)[0]]
        with MediaFile(media, limits=limits) as file:
            return list(index.audio.places(_reader(file, spec.front_end).packets_of(ranges, "samples")))
    except DecodeError:
        return []  # for the same reason when it is decoded


def decode_recording(handle: AudioHandle) -> AudioInput:
    """Returns what the front end makes of a recording, decoded in the calling thread.

    Raises:
        DecodeError: The data cannot be decoded, or not within the limits.
    """
    import torch

    if handle.decoded is not None:
        return handle.decoded
    waveform = torch.from_numpy(read_waveform(handle))
    return handle.spec.front_end.render(waveform, handle.layout, seed=handle.seed)


def read_waveform(handle: AudioHandle) -> npt.NDArray[np.float32]:
    """Returns the samples of a recording that its front end uses: [channels, samples].

    Raises:
        DecodeError: The data cannot be decoded, or not within the limits.
    """
    front_end = handle.spec.front_end
    start, stop = _range(handle)
    if stop <= start:
        return np.zeros((front_end.channels, 0), np.float32)
    with MediaFile(handle.data, limits=handle.limits) as file:
        reader = _reader(file, front_end)
        if handle.index is not None:
            reader.use_index(handle.index)
        samples = as_float(reader.read(start, stop))
    if samples.shape[1] != stop - start:
        raise DecodeError(
            f"It should have {stop - start:,} samples, and {samples.shape[1]:,} were decoded. Encode it again",
            handle.format,
            ROUTE,
        )
    return samples


def decode_outcome(handle: AudioHandle) -> Outcome:
    """Returns the outcome of decoding a recording with PyAV in the calling thread."""
    try:
        return Decoded(decode_recording(handle), ROUTE)
    except DecodeError as error:
        return DecodeFailure(error.reason, error.format or handle.format, error.route or ROUTE, handle.source)


def _reader(file: MediaFile, front_end: AudioFrontEnd) -> AudioReader:
    return AudioReader(file, sample_rate=front_end.sampling_rate, channels=front_end.channels)


def _range(handle: AudioHandle) -> tuple[int, int]:
    """Returns (start, stop) of the samples that the front end uses."""
    return handle.start_sample, handle.start_sample + handle.layout.kept_samples
