"""Small video and audio files of every form that the tests name, encoded when first requested.

Videos show a window that moves over a real photograph, or saturated colour bars; audio is a sweep with noise. Files
are kept for the rest of the process. `VIDEOS` and `AUDIOS` hold the recipes, `video_file` and `audio_file` the bytes.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from tests.av.mp4_boxes import with_claimed_frames, with_edits, with_rotation
from tests.decode.sample_images import photograph

FUZZED = (
    "h264-aac-mp4",
    "h264-opus-mkv",
    "hevc-b-mkv",
    "vp9-opus-webm",
    "av1-mp4",
    "mpeg4-mp3-avi",
    "mjpeg-pcm-mov",
    "vp8-avi",
    "h264-fragmented-mp4",
    "flac",
    "mp3",
    "aac-m4a",
    "opus-ogg",
    "vorbis-ogg",
    "pcm16-wav",
    "aac-adts",
)
"""The files that are damaged in thousands of ways."""

VFR_BASE = Fraction(1, 1200)
VFR_STEPS = (40, 40, 20, 100, 48, 48, 160, 8, 40, 60)
"""How long the frames of a file with a variable rate are shown, in units of `VFR_BASE`."""
ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "vp8": "libvpx",
    "vp9": "libvpx-vp9",
    "av1": "libsvtav1",
    "mpeg4": "mpeg4",
    "mjpeg": "mjpeg",
}
COLOURS = {
    "bt601": (Colorspace.ITU601, ColorPrimaries.SMPTE170M, ColorTrc.SMPTE170M),
    "bt709": (Colorspace.ITU709, ColorPrimaries.BT709, ColorTrc.BT709),
    "bt2020": (9, ColorPrimaries.BT2020, ColorTrc.BT2020_10),  # a matrix without a name in PyAV 17.1
}


@dataclass(frozen=True)
class VideoRecipe:
    """How to create a video file."""

    codec: str = "h264"
    container: str = "mp4"
    frames: int = 40
    rate: Fraction = Fraction(25)
    size: tuple[int, int] = (96, 64)
    """Width and height in pixels."""
    gop: int = 12
    """Frames from one key frame to the next."""
    b_frames: int = 0
    pixel_format: str = "yuv420p"
    variable_rate: bool = False
    start_seconds: Fraction = Fraction(0)
    """Presentation time of the first frame; below 0 the container cuts or shifts."""
    audio: str | None = None
    """Codec of its audio."""
    colour: str | None = None
    """One of `COLOURS`, written into the stream; None leaves it untagged."""
    full_range: bool = False
    saturated: bool = False
    """Colour bars instead of a photograph."""
    rotation: int = 0
    """Degrees clockwise by which players should rotate it."""
    edits: tuple[tuple[int, int], ...] = ()
    """Edit list to replace the muxer's own (`mp4_boxes.with_edits`)."""
    encoder_options: tuple[tuple[str, str], ...] = ()
    muxer_options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class AudioRecipe:
    """How to create an audio file."""

    codec: str
    container: str
    sample_format: str
    layout: str = "stereo"
    rate: int = 44100
    samples: int = 100_003
    start_seconds: Fraction = Fraction(0)
    """Time of the first sample."""


def _videos() -> dict[str, VideoRecipe]:
    base = VideoRecipe()
    b_frames = replace(base, b_frames=2)
    legal = {
        "h264": ("mp4", "mkv", "mov", "avi"),
        "hevc": ("mp4", "mkv", "mov"),
        "vp8": ("webm", "mkv", "avi"),
        "vp9": ("webm", "mkv", "mp4"),
        "av1": ("mp4", "mkv", "webm"),
        "mpeg4": ("mp4", "avi", "mkv", "mov"),
        "mjpeg": ("avi", "mov", "mkv", "mp4"),
    }
    found = {
        f"{codec}-{container}": replace(base, codec=codec, container=container)
        for codec, containers in legal.items()
        for container in containers
    }
    found |= {
        f"{codec}-b-{box}": replace(b_frames, codec=codec, container=box)
        for codec, box in (
            ("h264", "mp4"),
            ("h264", "mkv"),
            ("h264", "mov"),
            ("hevc", "mp4"),
            ("hevc", "mkv"),
            ("mpeg4", "mp4"),
            ("mpeg4", "avi"),
            ("mpeg4", "mkv"),
            ("h264", "avi"),
        )
    }
    found |= {
        f"{codec}-vfr-{box}": replace(base, codec=codec, container=box, variable_rate=True)
        for codec, box in (("vp8", "webm"), ("vp9", "webm"), ("av1", "mp4"), ("mjpeg", "mov"))
    }
    found |= {
        f"{codec}-vfr-b-{box}": replace(b_frames, codec=codec, container=box, variable_rate=True)
        for codec, box in (("h264", "mp4"), ("h264", "mkv"), ("hevc", "mov"), ("mpeg4", "mkv"))
    }
    found |= {
        f"h264-start-{box}": replace(b_frames, container=box, start_seconds=Fraction(7, 5))
        for box in ("mp4", "mkv", "mov")
    }
    odd: dict[str, Any] = {"pixel_format": "yuv444p", "size": (97, 63)}
    sound: dict[str, Any] = {"b_frames": 2, "frames": 60}
    open_gop = (("x264-params", "open-gop=1"),)
    deep: dict[str, Any] = {"pixel_format": "yuv420p10le"}
    return found | {
        "vp9-start-webm": replace(base, codec="vp9", container="webm", start_seconds=Fraction(2)),
        "h264-odd-mp4": replace(b_frames, **odd),
        "vp9-odd-webm": replace(base, codec="vp9", container="webm", size=(97, 63)),
        "mjpeg-odd-avi": replace(base, codec="mjpeg", container="avi", size=(97, 63)),
        "h264-10bit-mp4": replace(b_frames, **deep),
        "hevc-10bit-mkv": replace(b_frames, codec="hevc", container="mkv", **deep),
        "av1-10bit-mp4": replace(base, codec="av1", **deep),
        "h264-open-gop-mp4": replace(b_frames, encoder_options=open_gop),
        "h264-one-gop-mkv": replace(b_frames, container="mkv", gop=1000),
        "h264-all-key-mp4": replace(base, gop=1),
        "h264-one-frame-mp4": replace(base, frames=1),
        "h264-ntsc-mp4": replace(b_frames, rate=Fraction(30000, 1001)),
        "h264-fragmented-mp4": replace(b_frames, muxer_options=(("movflags", "frag_keyframe+empty_moov"),)),
        "h264-negative-start-mp4": replace(b_frames, start_seconds=Fraction(-2, 5)),
        "h264-negative-start-mkv": replace(b_frames, container="mkv", start_seconds=Fraction(-2, 5)),
        # The track counts 12800 units a second; 1024 is where the muxer's own edit begins, after two reordered frames.
        "h264-edit-middle-mp4": replace(b_frames, edits=((640, 1024 + 512 * 8),)),
        "h264-edit-gap-mp4": replace(b_frames, edits=((400, -1), (480, 1024 + 512 * 15))),
        "h264-edit-two-mp4": replace(b_frames, edits=((320, 1024 + 512 * 3), (480, 1024 + 512 * 24))),
        "h264-edit-backward-mp4": replace(b_frames, edits=((320, 1024 + 512 * 24), (480, 1024 + 512 * 3))),
        **{f"h264-rotated-{angle}-mp4": replace(base, frames=8, rotation=angle) for angle in (90, 180, 270)},
        "h264-aac-mp4": replace(base, audio="aac", **sound),
        "h264-aac-mov": replace(base, audio="aac", container="mov", **sound),
        "h264-opus-mkv": replace(base, audio="libopus", container="mkv", **sound),
        "vp9-opus-webm": replace(base, codec="vp9", audio="libopus", container="webm", frames=60),
        "mpeg4-mp3-avi": replace(base, codec="mpeg4", audio="libmp3lame", container="avi", frames=60),
        "mjpeg-pcm-mov": replace(base, codec="mjpeg", audio="pcm_s16le", container="mov", frames=60),
        "h264-flac-start-mkv": replace(base, audio="flac", container="mkv", start_seconds=Fraction(8, 5), **sound),
        **_colour_videos(),
    }


def _colour_videos() -> dict[str, VideoRecipe]:
    """Colour bars: every matrix and range, tagged or not, of a small and an HD video."""
    base = VideoRecipe(saturated=True, frames=6, size=(128, 96))
    found = {
        f"colour-{codec}-{name}-{'full' if full else 'limited'}": replace(
            base, codec=codec, container=box, colour=name, full_range=full
        )
        for codec, box in (("h264", "mp4"), ("vp9", "webm"))
        for name in COLOURS
        for full in (False, True)
    }
    return found | {
        "colour-h264-untagged": base,
        "colour-h264-untagged-hd": replace(base, size=(1280, 720), frames=2),
        "colour-vp8-untagged": replace(base, codec="vp8", container="webm"),
        "colour-mjpeg": replace(base, codec="mjpeg", container="avi"),
        "colour-hevc-bt2020-10bit": replace(base, codec="hevc", colour="bt2020", pixel_format="yuv420p10le"),
        "colour-h264-444-bt709": replace(base, colour="bt709", pixel_format="yuv444p"),
    }


VIDEOS = _videos()
"""All videos by name: codec, what is special, container."""
AUDIOS = {
    "pcm16-wav": AudioRecipe("pcm_s16le", "wav", "s16"),
    "pcm24-wav": AudioRecipe("pcm_s24le", "wav", "s32"),
    "f32-wav": AudioRecipe("pcm_f32le", "wav", "flt", rate=16000),
    "pcm16-mono-wav": AudioRecipe("pcm_s16le", "wav", "s16", layout="mono", rate=8000, samples=20_001),
    "pcm16-5.1-wav": AudioRecipe("pcm_s16le", "wav", "s16", layout="5.1", rate=48000, samples=30_000),
    "flac": AudioRecipe("flac", "flac", "s16"),
    "flac24-mkv": AudioRecipe("flac", "mkv", "s32", rate=48000),
    "flac-start-mkv": AudioRecipe("flac", "mkv", "s16", rate=48000, start_seconds=Fraction(9, 4)),
    "mp3": AudioRecipe("libmp3lame", "mp3", "s16p"),
    "mp3-mono": AudioRecipe("libmp3lame", "mp3", "fltp", layout="mono", rate=22050, samples=70_001),
    "aac-m4a": AudioRecipe("aac", "mp4", "fltp"),
    "aac-adts": AudioRecipe("aac", "adts", "fltp"),
    "aac-mkv": AudioRecipe("aac", "mkv", "fltp", rate=48000),
    "opus-webm": AudioRecipe("libopus", "webm", "s16", rate=48000),
    "opus-ogg": AudioRecipe("libopus", "ogg", "s16", rate=48000),
    "vorbis-ogg": AudioRecipe("vorbis", "ogg", "fltp"),
    "alaw-wav": AudioRecipe("pcm_alaw", "wav", "s16", layout="mono", rate=8000, samples=20_001),
}
"""All audio files by name: codec, what is special, container."""


@cache
def video_file(name: str) -> bytes:
    """Returns one of `VIDEOS` as a file."""
    return encode_video(VIDEOS[name])


@cache
def audio_file(name: str) -> bytes:
    """Returns one of `AUDIOS` as a file."""
    return encode_audio(AUDIOS[name])


def encode_video(recipe: VideoRecipe) -> bytes:
    """Returns the video of a recipe; a pure function.

    FFmpeg has refused packets of x265, even five times: encoders of one process share the size of their largest units,
    until the last of them is freed. The video is made again then, and in the end in a process of its own.
    """
    with _scheduling_kept():
        for _ in range(4):
            with suppress(av.error.PatchWelcomeError):
                return _encode_video(recipe)
            gc.collect()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            return other.submit(_encode_video, recipe).result()


@contextmanager
def _scheduling_kept() -> Iterator[None]:
    """Restores the scheduling of the calling thread.

    As root, SVT-AV1 puts the thread that opens it under real-time scheduling with the highest priority. Every process
    that a test starts from there inherits it, and one that is busy starves the machine.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def _encode_video(recipe: VideoRecipe) -> bytes:
    stream, options = io.BytesIO(), dict(recipe.muxer_options)
    container_format = {"mkv": "matroska"}.get(recipe.container, recipe.container)
    with av.open(stream, "w", format=container_format, options=options) as container:
        video = _add_video(container, recipe)
        sound = _add_audio(container, recipe) if recipe.audio is not None else None
        container.start_encoding()
        packets = []
        for frame in _video_frames(recipe, video.codec_context.time_base):
            packets += video.encode(frame)
        packets += video.encode(None)
        if sound is not None:
            seconds = recipe.frames / recipe.rate
            frames = _audio_frames(sound, int(seconds * sound.rate) + 331, max(recipe.start_seconds, Fraction(0)))
            for chunk in frames:
                packets += sound.encode(chunk)
            packets += sound.encode(None)
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        for packet in packets:
            container.mux(packet)
    data = stream.getvalue()
    if recipe.edits:
        data = with_edits(data, list(recipe.edits))
    return with_rotation(data, recipe.rotation) if recipe.rotation else data


def encode_audio(recipe: AudioRecipe) -> bytes:
    """Returns the audio file of a recipe; a pure function."""
    stream = io.BytesIO()
    container_format = {"mkv": "matroska"}.get(recipe.container, recipe.container)
    with av.open(stream, "w", format=container_format) as container:
        sound = container.add_stream(recipe.codec, rate=recipe.rate)
        sound.codec_context.layout = recipe.layout
        sound.codec_context.format = recipe.sample_format
        sound.codec_context.options = {"strict": "experimental"}
        for chunk in _audio_frames(sound, recipe.samples, recipe.start_seconds):
            container.mux(sound.encode(chunk))
        container.mux(sound.encode(None))
    return stream.getvalue()


def picture(recipe: VideoRecipe, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns a frame before it is encoded, uint8[H, W, 3]; no two frames of a video are the same."""
    width, height = recipe.size
    if recipe.saturated:
        bars = np.array(
            [
                [255, 0, 0],
                [0, 255, 0],
                [0, 0, 255],
                [255, 255, 0],
                [0, 255, 255],
                [255, 0, 255],
                [255, 255, 255],
                [0, 0, 0],
            ],
            np.uint8,
        )
        columns = (np.arange(width) * 8 // width + number) % 8
        levels = np.linspace(0.25, 1, height)[:, None, None]
        return (bars[columns][None] * levels).astype(np.uint8)
    photo = np.asarray(photograph("china", (width + 48, height + 48)))
    x, y = number * 2 % 48, abs(24 - number * 3 % 48)
    return np.ascontiguousarray(photo[y : y + height, x : x + width])


def presentation_times(recipe: VideoRecipe) -> list[Fraction]:
    """Returns the times (seconds) passed to the encoder, one per frame."""
    if not recipe.variable_rate:
        return [recipe.start_seconds + number / recipe.rate for number in range(recipe.frames)]
    steps = np.resize(np.array(VFR_STEPS), recipe.frames)
    return [recipe.start_seconds + int(before) * VFR_BASE for before in np.cumsum(steps) - steps]


def broken_files() -> dict[str, bytes]:
    """Returns files that no decoder can decode, or with a false header, named after what is wrong with them."""
    mp4, webm, wav = video_file("h264-b-mp4"), video_file("vp9-webm"), audio_file("pcm16-wav")
    return {
        "empty": b"",
        "one-byte": b"\0",
        "text": b"This is not a video, whatever its name says.\n" * 40,
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "zeros": bytes(5000),
        "mp4-half": mp4[: len(mp4) // 2],
        "mp4-header-only": mp4[:40],
        "mp4-ten-million-frames": with_claimed_frames(mp4, 10_000_000),
        "webm-header-only": webm[:300],
        "wav-header-only": wav[:40],
    }


def _add_video(container: Any, recipe: VideoRecipe) -> Any:
    options = {
        "h264": {"preset": "veryfast", "crf": "18"},
        "hevc": {
            "preset": "ultrafast",
            "x265-params": f"log-level=none:pools=none:bframes={recipe.b_frames}:"
            f"keyint={recipe.gop}:min-keyint={recipe.gop}",
        },
        "vp8": {"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "1"},
        "vp9": {"deadline": "realtime", "cpu-used": "8"},
        "av1": {"preset": "12", "svtav1-params": "lp=1"},
    }.get(recipe.codec, {}) | dict(recipe.encoder_options)
    stream = container.add_stream(ENCODERS[recipe.codec], rate=recipe.rate, options=options)
    context = stream.codec_context
    context.width, context.height = recipe.size
    context.pix_fmt = f"yuvj{recipe.pixel_format[3:]}" if recipe.codec == "mjpeg" else recipe.pixel_format
    context.gop_size = recipe.gop
    context.thread_count = 1
    if recipe.codec in ("h264", "mpeg4"):
        context.max_b_frames = recipe.b_frames
    if recipe.codec in ("mpeg4", "mjpeg"):
        context.bit_rate = 800_000
    context.time_base = stream.time_base = VFR_BASE if recipe.variable_rate else 1 / recipe.rate
    if recipe.colour is not None:
        context.colorspace, context.color_primaries, context.color_trc = COLOURS[recipe.colour]
        context.color_range = ColorRange.JPEG if recipe.full_range else ColorRange.MPEG
    return stream


def _video_frames(recipe: VideoRecipe, time_base: Fraction) -> Iterator[av.VideoFrame]:
    full = recipe.full_range or recipe.codec == "mjpeg"
    matrix = COLOURS[recipe.colour][0] if recipe.colour is not None else Colorspace.ITU601
    format = f"yuvj{recipe.pixel_format[3:]}" if recipe.codec == "mjpeg" else recipe.pixel_format
    for number, seconds in enumerate(presentation_times(recipe)):
        frame = av.VideoFrame.from_ndarray(picture(recipe, number), format="rgb24").reformat(
            format=format, dst_colorspace=matrix, dst_color_range=ColorRange.JPEG if full else ColorRange.MPEG
        )
        frame.pts, frame.time_base = round(seconds / time_base), time_base
        yield frame


def _add_audio(container: Any, recipe: VideoRecipe) -> Any:
    stream = container.add_stream(recipe.audio, rate=48000 if recipe.audio == "libopus" else 44100)
    stream.codec_context.layout = "stereo"
    return stream


def sound(rate: int, channels: int, samples: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns a sweep with noise, float64[channels, samples] in -1..1; all channels differ."""
    time = np.arange(samples) / rate
    noise = np.random.default_rng(7).uniform(-0.1, 0.1, (channels, samples))
    sweeps = [0.6 * np.sin(2 * np.pi * (220 * (channel + 1) + 300 * time) * time) for channel in range(channels)]
    return np.stack(sweeps) + noise


def _audio_frames(stream: Any, samples: int, start_seconds: Fraction) -> Iterator[av.AudioFrame]:
    context = stream.codec_context
    signal = sound(context.rate, context.layout.nb_channels, samples)
    packed = context.format.packed.name
    scale = {"u8": 127, "s16": 2**15 - 1, "s32": 2**31 - 256, "flt": 1}[packed]
    dtype = {"s16": np.int16, "s32": np.int32, "flt": np.float32}[packed]
    values = (signal * scale).astype(dtype)
    if packed == "s32":
        values &= ~0xFF  # codecs of 32-bit samples keep 24 bits
    step = context.frame_size or 1024
    first = round(start_seconds * context.rate)
    for begin in range(0, samples, step):
        chunk = np.ascontiguousarray(values[:, begin : begin + step])
        planar = context.format.is_planar
        array = chunk if planar else np.ascontiguousarray(chunk.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(array, format=context.format.name, layout=context.layout.name)
        frame.sample_rate, frame.pts, frame.time_base = context.rate, first + begin, Fraction(1, context.rate)
        yield frame
