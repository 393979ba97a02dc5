"""The sound of clips, decoded with PyAV on the CPU, whatever decodes the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips.handle import ClipsHandle
from energon_dali.errors import DecodeError
from energon_dali.samples import Clips

if TYPE_CHECKING:
    from energon_dali.av import MediaFile


def decode_audio_of_clips(handle: ClipsHandle, file: MediaFile | None = None) -> Clips:
    """Returns clips without frames, with the sound that the handle's spec asks for: none, or all of its clips.

    Args:
        handle: The file, with the starts of its clips.
        file: The same file, if it is open already.

    Raises:
        DecodeError: The sound cannot be decoded.
    """
    wanted = handle.spec.clip_audio
    if wanted is None:
        return Clips(None, None)
    import torch

    seconds = handle.spec.audio_seconds
    if not handle.audio_codec:
        _check_sound(handle, wanted.channels or 0, wanted.sample_rate or 0)
        assert wanted.channels is not None, "silence is refused without channels and a rate"
        assert wanted.sample_rate is not None, "silence is refused without channels and a rate"
        shape = (len(handle.starts), wanted.channels, round(seconds * wanted.sample_rate))
        none = np.stack([handle.starts, handle.starts], 1)
        return Clips(None, None, torch.zeros(shape), torch.from_numpy(none), wanted.sample_rate)
    from energon_dali.av import MediaFile
    from energon_dali.av.audio import AudioReader

    if file is None:
        with MediaFile(handle.data, limits=handle.limits) as opened:
            return decode_audio_of_clips(handle, opened)
    reader = AudioReader(file, sample_rate=wanted.sample_rate, channels=wanted.channels, damaged=handle.spec.damaged)
    rate = reader.sample_rate
    _check_sound(handle, reader.channels, rate)
    starts = handle.starts.tolist()
    sound = np.zeros((len(starts), reader.channels, round(seconds * rate)), np.float32)
    times = np.stack([handle.starts, handle.starts], 1)
    for row, clip in enumerate(reader.read_clips([(start, start + seconds) for start in starts])):
        if clip is None:
            continue  # the stream begins later, or ended before
        skipped = max(0, round((clip.start_seconds - starts[row]) * rate))
        heard = clip.samples[:, : max(0, sound.shape[2] - skipped)]
        sound[row, :, skipped : skipped + heard.shape[1]] = as_float(heard)
        times[row] = clip.start_seconds, clip.start_seconds + heard.shape[1] / rate
    return Clips(None, None, torch.from_numpy(sound), torch.from_numpy(times), rate)


def _check_sound(handle: ClipsHandle, channels: int, rate: int) -> None:
    """Does nothing where the sound of the clips is within the limits; a header can claim any rate.

    Raises:
        DecodeError: It is not.
    """
    from energon_dali.av import AVLimits

    limits = handle.limits or AVLimits()
    samples = len(handle.starts) * round(handle.spec.audio_seconds * rate)
    if samples > limits.max_audio_samples or samples * channels * 4 > limits.max_bytes:
        raise DecodeError(
            f"The clips have {samples:,} samples of {channels} channels at {rate:,} Hz, more than "
            f"AVLimits(max_audio_samples={limits.max_audio_samples:,}, max_bytes={limits.max_bytes:,}) allows. Ask for "
            "shorter clips or a lower rate, or raise the limit",
            handle.format,
            "pyav",
        )


def as_float(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns sound of any sample type as float32 in [-1, 1]: integers are divided by the magnitude of their range."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32, copy=False)
    half = float(1 << (8 * samples.dtype.itemsize - 1))
    if samples.dtype.kind == "u":
        return ((samples.astype(np.float64) - half) / half).astype(np.float32)
    return (samples.astype(np.float64) / half).astype(np.float32)
