"""Writes a small dataset of conversations with images, videos or audio, from which the recipes learn something.

    python examples/vlm/small_data.py omni data/omni

Each sample is a conversation in JSON, whose blocks name the other parts of the sample.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import tarfile
import wave
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from energon_dali.cli.main import main as energon_dali

COLOURS = {"red": (205, 60, 50), "green": (70, 150, 80), "blue": (60, 100, 190), "yellow": (235, 200, 70)}
CHANGES = {"brighter": 1, "darker": -1}
TONES = {"low": 200, "high": 1500}
RATE, FRAMES, FRAMES_PER_SECOND = 16_000, 12, 8
Sample = tuple[list[dict[str, Any]], dict[str, bytes]]
"""Messages, and the parts that they name."""


def make_image(draw: random.Random, colour: str) -> bytes:
    """Returns a JPEG of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (draw.randint(50, 110), draw.randint(50, 110)), COLOURS[colour]).save(file, "JPEG")
    return file.getvalue()


def make_video(draw: random.Random, change: str) -> bytes:
    """Returns an MP4 that gets brighter or darker."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=Fraction(FRAMES_PER_SECOND))
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(draw.randint(FRAMES - 4, FRAMES)):
            level = 128 + CHANGES[change] * (12 * number - 60)
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def make_audio(draw: random.Random, tone: str) -> bytes:
    """Returns a WAV of one tone, up to a second long."""
    file = io.BytesIO()
    count = draw.randint(RATE // 3, RATE)
    values = [int(9000 * math.sin(2 * math.pi * TONES[tone] * number / RATE)) for number in range(count)]
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        wav.writeframes(np.array(values, "<i2").tobytes())
    return file.getvalue()


def text(words: str) -> dict[str, str]:
    """Returns a block of text."""
    return {"type": "text", "text": words}


def turns(*pairs: tuple[list[dict[str, str]], str]) -> list[dict[str, Any]]:
    """Returns the messages of questions and their answers."""
    roles = ("user", "assistant")
    return [{"role": role, "content": said} for pair in pairs for role, said in zip(roles, pair, strict=True)]


def images(draw: random.Random) -> Sample:
    """Returns a conversation about two or three images, with words between them."""
    colours = draw.choices(list(COLOURS), k=draw.randint(2, 3))
    parts = {f"{number}.jpg": make_image(draw, colour) for number, colour in enumerate(colours)}
    blocks = [text("From ")]
    for name in parts:
        blocks += [{"type": "image", "part": name}, text(" to ")]
    blocks[-1] = text(": which colours? ")
    return turns((blocks, " to ".join(colours))), parts


def video(draw: random.Random) -> Sample:
    """Returns a conversation about a video."""
    change = draw.choice(list(CHANGES))
    blocks = [{"type": "video", "part": "clip.mp4"}, text("How does it change? ")]
    return turns((blocks, f"It becomes {change}.")), {"clip.mp4": make_video(draw, change)}


def audio(draw: random.Random) -> Sample:
    """Returns a conversation about two recordings, in two turns."""
    tones = draw.choices(list(TONES), k=2)
    parts = {f"{number}.wav": make_audio(draw, tone) for number, tone in enumerate(tones)}
    questions = [[{"type": "audio", "part": name}, text("Which tone? ")] for name in parts]
    answers = [f"A {tone} tone." for tone in tones]
    return turns(*zip(questions, answers, strict=True)), parts


def omni(draw: random.Random) -> Sample:
    """Returns a conversation about media of some kinds, at least one."""
    made = [make(draw) for make in draw.sample([images, video, audio], draw.randint(1, 3))]
    parts = {name: data for _, files in made for name, data in files.items()}
    return [message for messages, _ in made for message in messages], parts


KINDS: dict[str, Callable[[random.Random], Sample]] = {"images": images, "video": video, "audio": audio, "omni": omni}
"""How to make a sample of each kind."""


def write_data(kind: str, folder: Path, *, samples: int = 48, shards: int = 4) -> Path:
    """Writes a prepared dataset and returns its folder.

    Args:
        kind: One of `KINDS`.
        folder: Made if it does not exist.
        samples: Number of conversations.
        shards: Number of tar files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for number in range(shard, samples, shards):
                messages, parts = KINDS[kind](random.Random(number))
                document = json.dumps({"messages": messages}).encode()
                for name, data in {"json": document, **parts}.items():
                    member = tarfile.TarInfo(f"{number:05d}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    prepare = ["prepare", str(folder), "--non-interactive", "--split-ratio", "1,0,0", "--num-workers", "1"]
    energon_dali([*prepare, "--sample-type", "CrudeWebdataset"], standalone_mode=False)
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    options = parser.parse_args(arguments)
    print(write_data(options.kind, options.folder, samples=options.samples))


if __name__ == "__main__":
    main()
