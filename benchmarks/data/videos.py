"""Videos of real photographs: pans and zooms over a photograph, with noise, encoded with PyAV."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
from PIL import Image

from benchmarks.data.photographs import PHOTOGRAPHS, open_photograph

SOUND_RATE = 44_100
"""Samples per second of sound, the commonest rate of videos on the web."""


def make_video(
    rng: np.random.Generator,
    *,
    width: int = 640,
    height: int = 360,
    frames: int = 300,
    fps: int = 30,
    photograph: int | None = None,
    codec: str = "libx264",
    container: str = "mp4",
    fast: bool = False,
    sound: bool = False,
) -> tuple[bytes, str]:
    """Returns (encoded video, its description).

    Without options of its own the encoder makes what users have: B-frames, and keyframes up to 250 frames apart.

    Args:
        rng: Source of every choice.
        width: Of the frames, in pixels.
        height: Of the frames, in pixels.
        frames: How many.
        fps: Frames per second, constant.
        photograph: Number of the photograph; None draws one.
        codec: Name of an encoder of FFmpeg.
        container: Name of a muxer of FFmpeg.
        fast: Spend a tenth of the encoder's time, and bits in its place.
        sound: Whether there is stereo AAC of 44.1 kHz as well: tones that glide, over noise.
    """
    number = int(rng.integers(len(PHOTOGRAPHS))) if photograph is None else photograph
    picture = open_photograph(PHOTOGRAPHS[number])
    grain = rng.normal(0, 2, (height, width, 1)).astype(np.float32)
    (x0, x1), (y0, y1) = rng.uniform(0.0, 1.0, (2, 2))
    z0, z1 = rng.uniform(0.35, 0.95, 2)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        hurry = {"deadline": "realtime", "cpu-used": "8"} if "vpx" in codec else {"preset": "veryfast", "crf": "18"}
        stream = output.add_stream(codec, rate=fps, options=hurry if fast else {})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, fps)
        stream.codec_context.thread_count = 1  # the same bytes on every machine
        heard = output.add_stream("aac", rate=SOUND_RATE, layout="stereo") if sound else None
        for place in range(frames):
            share = place / max(1, frames - 1)
            zoom = z0 + (z1 - z0) * share
            scale = min(picture.width / width, picture.height / height) * zoom
            box_width, box_height = width * scale, height * scale
            left = (picture.width - box_width) * (x0 + (x1 - x0) * share)
            top = (picture.height - box_height) * (y0 + (y1 - y0) * share)
            view = picture.resize(
                (width, height), Image.Resampling.BILINEAR, box=(left, top, left + box_width, top + box_height)
            )
            pixels = np.asarray(view, np.float32) + np.roll(grain, 37 * place, (0, 1)[place % 2])
            frame = av.VideoFrame.from_ndarray(np.clip(pixels, 0, 255).astype(np.uint8), format="rgb24")
            frame.pts = place
            frame.time_base = Fraction(1, fps)
            output.mux(stream.encode(frame))
            if heard is not None:  # next to its frame, as in files that are played while they are loaded
                output.mux(heard.encode(_sound(rng, place, fps)))
        output.mux(stream.encode(None))
        if heard is not None:
            output.mux(heard.encode(None))
    return buffer.getvalue(), PHOTOGRAPHS[number].description


def _sound(rng: np.random.Generator, place: int, fps: int) -> av.AudioFrame:
    """Returns the sound of one frame, stereo of `SOUND_RATE`."""
    first, stop = (round(number * SOUND_RATE / fps) for number in (place, place + 1))
    seconds = np.arange(first, stop) / SOUND_RATE
    tone = 0.4 * np.sin(2 * np.pi * np.stack([220 + 20 * seconds, 330 - 10 * seconds]) * seconds)
    values = (tone + 0.05 * rng.standard_normal(tone.shape)).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(values, format="fltp", layout="stereo")
    frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, first, Fraction(1, SOUND_RATE)
    return frame


def repeat_video(data: bytes, container: str, rounds: int, *, fps: int) -> bytes:
    """Returns a video that repeats another one several times, made of its packets without encoding again.

    Args:
        data: The video: one stream, constant frame rate, beginning with a keyframe.
        container: Name of a muxer of FFmpeg.
        rounds: How often it is shown.
        fps: Its frames per second.

    Raises:
        ValueError: The video has no time base.
    """
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container) as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        if stream.time_base is None:
            raise ValueError("The video has no time base, so that its packets cannot be moved in time.")
        per_frame = 1 / (fps * stream.time_base)
        packets = [
            (bytes(packet), packet.pts, packet.dts, packet.is_keyframe)
            for packet in source.demux(stream)
            if packet.pts is not None and packet.dts is not None
        ]
        for number in range(rounds):
            shift = round(number * len(packets) * per_frame)
            for content, pts, dts, is_keyframe in packets:
                packet = av.Packet(content)
                packet.stream, packet.time_base = copy, stream.time_base
                packet.pts, packet.dts, packet.is_keyframe = pts + shift, dts + shift, is_keyframe
                packet.duration = int(per_frame)
                output.mux(packet)
    return buffer.getvalue()
