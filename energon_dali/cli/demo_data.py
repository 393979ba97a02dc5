"""`energon-dali demo-data`: makes the images, the small dataset and the video that the README's examples read."""

from __future__ import annotations

import io
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

if TYPE_CHECKING:
    from PIL import Image

SHARDS = 4
VIDEO_FRAMES, VIDEO_RATE, VIDEO_WIDTH, VIDEO_HEIGHT = 250, 25, 320, 180
AUDIO_RATE = 44_100
PHOTO_WIDTH, PHOTO_HEIGHT = 640, 427
_COLOURS = {
    "red": (205, 60, 50),
    "green": (70, 150, 80),
    "blue": (60, 100, 190),
    "yellow": (235, 200, 70),
    "white": (240, 240, 235),
    "black": (35, 35, 40),
}
_PHOTOGRAPHS = {
    "skimage/data/astronaut.png": ("astronaut", "an astronaut in an orange suit"),
    "skimage/data/chelsea.png": ("cat", "a tabby cat"),
    "skimage/data/coffee.png": ("coffee", "a cup of coffee on a wooden table"),
    "skimage/data/rocket.jpg": ("rocket", "a rocket on its launch pad at dusk"),
    "sklearn/datasets/images/china.jpg": ("temple", "a Chinese temple under a blue sky"),
    "sklearn/datasets/images/flower.jpg": ("flower", "an orange dahlia"),
}
"""Photographs in the wheels of scikit-image and scikit-learn: the class of each, and what it shows."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """An image to cut samples from."""

    image: Image.Image
    """RGB, at least 400 pixels in width and 300 in height."""
    kind: str
    """Its class, the name of a folder."""
    caption: str
    """What it shows."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """An encoded image and what belongs to it."""

    key: str
    kind: str
    """Its class, the name of a folder."""
    suffix: str
    """Of the image's file, without the dot."""
    data: bytes
    caption: str


@click.command("demo-data")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--samples",
    default=256,
    show_default=True,
    type=click.IntRange(min=SHARDS, max=1_000_000),
    help="Number of images.",
)
def demo_data(folder: Path, samples: int) -> None:
    """Make images, a dataset and a video to try things on: FOLDER/photos, FOLDER/captions, FOLDER/video.mp4.

    FOLDER/captions holds images with captions in four tar shards and is prepared. FOLDER/photos holds the same images
    as files, in a folder for each class. They are crops of the photographs that come with scikit-image and scikit-learn
    if those are installed, and drawn shapes otherwise. FOLDER/photo.jpg is a larger one, which pages of the
    documentation read. What FOLDER already holds stays as it is.
    """
    photos, captions, video, photo = (folder / name for name in ("photos", "captions", "video.mp4", "photo.jpg"))
    folder.mkdir(parents=True, exist_ok=True)
    scenes = [] if all(path.exists() for path in (photos, captions, video, photo)) else _photographs()
    kind = "crops of photographs" if scenes else "drawn images"
    # Both are made under another name first: an interrupted run leaves nothing that looks complete.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".demo-data-") as unfinished:
        if not (photos.exists() and captions.exists()):
            _write_samples(Path(unfinished), _make_samples(scenes, samples), -(-samples // SHARDS))
        if photos.exists():
            click.echo(f"{photos} already exists.")
        else:
            shutil.move(Path(unfinished, "photos"), photos)
            classes = len([path for path in photos.iterdir() if path.is_dir()])
            click.echo(f"{photos}: {samples} {kind}, a folder for each of {classes} classes")
        if captions.exists():
            click.echo(f"{captions} already exists.")
        else:
            _prepare(Path(unfinished, "captions"))
            shutil.move(Path(unfinished, "captions"), captions)
            click.echo(f"{captions}: {samples} {kind} with captions in {SHARDS} shards, prepared")
        if video.exists():
            click.echo(f"{video} already exists.")
        else:
            scene = scenes[0] if scenes else _drawn_scene(np.random.default_rng(0))
            Path(unfinished, "video.mp4").write_bytes(_encoded_video(scene.image))
            shutil.move(Path(unfinished, "video.mp4"), video)
            seconds = VIDEO_FRAMES // VIDEO_RATE
            click.echo(f"{video}: {seconds} seconds, {VIDEO_WIDTH} x {VIDEO_HEIGHT}, with audio")
        if photo.exists():
            click.echo(f"{photo} already exists.")
        else:
            Path(unfinished, "photo.jpg").write_bytes(_photo(scenes))
            shutil.move(Path(unfinished, "photo.jpg"), photo)
            click.echo(f"{photo}: one image of {PHOTO_WIDTH} x {PHOTO_HEIGHT} pixels")


def _photo(scenes: list[_Scene]) -> bytes:
    """Returns a JPEG of the size that pages of the documentation print: a photograph of that size, or a drawn image."""
    size = (PHOTO_WIDTH, PHOTO_HEIGHT)
    fitting = [scene.image for scene in scenes if scene.image.size == size]
    return _encoded(fitting[0] if fitting else _drawn_scene(np.random.default_rng(0)).image.resize(size), "jpg")


def _photographs() -> list[_Scene]:
    """Returns the photographs that are installed. Their packages are not imported, which would take seconds."""
    from PIL import Image

    scenes = []
    for path, (kind, caption) in _PHOTOGRAPHS.items():
        package, _, rest = path.partition("/")
        spec = find_spec(package)
        for parent in (spec.submodule_search_locations or []) if spec else []:
            file = Path(parent, rest)
            if file.is_file():
                scenes.append(_Scene(Image.open(io.BytesIO(file.read_bytes())).convert("RGB"), kind, caption))
    for scene in scenes:
        scene.image.info.clear()  # a colour profile would be written into every crop
    return scenes


def _drawn_scene(rng: np.random.Generator) -> _Scene:
    """Returns a shape of one colour on a ground of another, with some texture."""
    from PIL import Image, ImageDraw

    ground, colour = (str(name) for name in rng.choice(list(_COLOURS), 2, replace=False))
    shape = str(rng.choice(["circle", "square", "triangle"]))
    image = Image.new("RGB", (480, 360), _COLOURS[ground])
    draw = ImageDraw.Draw(image)
    radius = int(rng.integers(60, 120))
    x, y = int(rng.integers(radius, 480 - radius)), int(rng.integers(radius, 360 - radius))
    if shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_COLOURS[colour])
    else:
        draw.regular_polygon((x, y, radius), 4 if shape == "square" else 3, fill=_COLOURS[colour])
    pixels = np.asarray(image, np.float32) + rng.normal(0, 6, (360, 480, 1))
    return _Scene(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), shape, f"a {colour} {shape} on {ground}")


def _make_samples(scenes: list[_Scene], samples: int) -> Iterator[_Sample]:
    """Yields the samples in order; the same scenes give the same samples."""
    rng = np.random.default_rng(0)
    for index in range(samples):
        if scenes:
            yield _cut(rng, scenes[index % len(scenes)], f"{index:06d}")
        else:
            scene = _drawn_scene(rng)
            yield _Sample(f"{index:06d}", scene.kind, "jpg", _encoded(scene.image, "jpg"), scene.caption)


def _write_samples(folder: Path, samples: Iterator[_Sample], per_shard: int) -> None:
    """Writes folder/photos, with a file for each image, and folder/captions, with the tar shards."""
    import webdataset

    (folder / "captions").mkdir()
    for shard in range(SHARDS):
        # An open file: webdataset takes a path with a colon for a URL.
        path = folder / "captions" / f"shard-{shard:03d}.tar"
        with path.open("wb") as file, webdataset.TarWriter(file, mtime=0) as writer:
            for sample in islice(samples, per_shard):
                writer.write({"__key__": sample.key, sample.suffix: sample.data, "txt": sample.caption})
                photo = folder / "photos" / sample.kind / f"{sample.key}.{sample.suffix}"
                photo.parent.mkdir(parents=True, exist_ok=True)
                photo.write_bytes(sample.data)


def _cut(rng: np.random.Generator, scene: _Scene, key: str) -> _Sample:
    """Returns a random part of a scene."""
    from PIL import Image

    width, height = int(rng.integers(240, 400)), int(rng.integers(200, 300))
    left = int(rng.integers(scene.image.width - width + 1))
    top = int(rng.integers(scene.image.height - height + 1))
    image, caption = scene.image.crop((left, top, left + width, top + height)), scene.caption
    if rng.random() < 0.5:
        image, caption = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), f"{caption}, mirrored"
    suffix = str(rng.choice(["jpg", "png", "webp"], p=[0.8, 0.1, 0.1]))
    return _Sample(key, scene.kind, suffix, _encoded(image, suffix), caption)


def _encoded(image: Image.Image, suffix: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[suffix])
    return buffer.getvalue()


def _prepare(folder: Path) -> None:
    """Runs `energon-dali prepare` on the shards, quietly."""
    from energon_dali.cli.prepare import prepare

    arguments = [str(folder), "--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", "1,0,0"]
    field_map = '{"image": "jpg,png,webp", "caption": "txt"}'
    with redirect_stdout(io.StringIO()):
        prepare([*arguments, "--sample-type", "CaptioningSample", "--field-map", field_map], standalone_mode=False)


def _encoded_video(image: Image.Image) -> bytes:
    """Returns an MP4 whose camera zooms slowly into an image while a tone rises from 220 to 880 Hz."""
    import av
    from PIL import Image as PILImage

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        # MPEG-4 is in every build of FFmpeg; H.264 is what users have.
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        video: Any = output.add_stream(codec, rate=VIDEO_RATE)
        video.width, video.height, video.pix_fmt = VIDEO_WIDTH, VIDEO_HEIGHT, "yuv420p"
        audio: Any = output.add_stream("aac", rate=AUDIO_RATE, layout="mono")
        for number in range(VIDEO_FRAMES):
            zoom = 1 - 0.5 * number / VIDEO_FRAMES
            scale = min(image.width / VIDEO_WIDTH, image.height / VIDEO_HEIGHT) * zoom
            width, height = VIDEO_WIDTH * scale, VIDEO_HEIGHT * scale
            left, top = (image.width - width) / 2, (image.height - height) / 2
            view = image.resize(
                (VIDEO_WIDTH, VIDEO_HEIGHT), PILImage.Resampling.BILINEAR, box=(left, top, left + width, top + height)
            )
            frame = av.VideoFrame.from_ndarray(np.asarray(view), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, VIDEO_RATE)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        seconds = VIDEO_FRAMES / VIDEO_RATE
        times = np.arange(int(AUDIO_RATE * seconds)) / AUDIO_RATE
        tone = 0.2 * np.sin(2 * math.pi * (220 * times + 330 * times**2 / seconds))
        sound = av.AudioFrame.from_ndarray(tone.astype(np.float32)[None], format="fltp", layout="mono")
        sound.sample_rate, sound.pts, sound.time_base = AUDIO_RATE, 0, Fraction(1, AUDIO_RATE)
        output.mux(audio.encode(sound))
        output.mux(audio.encode(None))
    return buffer.getvalue()
