"""Compares what every route makes of a file: whether the image exists, and its pixels.

    python -m tests.decode.agreement --count 20000 --seed 0

damages that many images, decodes each by every route in a process that may crash, and prints the files on which two
routes disagree.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from energon_dali.decode import (
    CenterCrop,
    DaliDecoder,
    Decoded,
    MediaHandle,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    SampleDecoder,
)
from energon_dali.errors import DecodeError
from tests.decode.damage import damage
from tests.decode.sample_images import sample_images

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"image_decode": "rgb8"},
    "CHW": {"image_decode": "torchrgb8"},
    "gray": {"image_decode": "l8"},
    "alpha": {"image_decode": "rgba8"},
    "crop": {"image_decode": "rgb8", "operations": [RandomCrop((9, 9))]},
    "resized-crop": {"image_decode": "rgb8", "operations": [RandomResizedCrop((24, 24))]},
    "resize-crop": {"image_decode": "rgb8", "operations": [Resize(32), CenterCrop(24)]},
    "resize-smaller": {"image_decode": "rgb8", "operations": [Resize(16)], "decode_scale": "fastest"},
    "resized-crop-smaller": {"image_decode": "rgb8", "operations": [RandomResizedCrop((9, 9))], "decode_scale": "fast"},
}
"""Options of decoders by name. Those with "resize" only compare existence, because resampled pixels have a
tolerance."""
SEEDS = range(3)
"""For the random crops of each file."""


@dataclass(frozen=True)
class Disagreement:
    """Two routes that differ about a file."""

    name: str
    """Name of the good image that was damaged."""
    data: bytes
    """The damaged file."""
    what: str
    """The route, and how it differs."""


def load_by_pil(data: bytes) -> str:
    """Returns what PIL's `load` raises; "" if the file is an image."""
    try:
        with Image.open(BytesIO(data)) as image:
            image.load()
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def compare(
    files: Sequence[tuple[str, bytes]], options: Sequence[str] = tuple(OPTIONS), max_pixels: int = 1 << 24
) -> Iterator[Disagreement]:
    """Yields the differences of each route from PIL's `load`, or from SampleDecoder's pixels.

    Args:
        files: Name and content.
        options: Which of OPTIONS.
        max_pixels: Limit of the decoders: larger images, which cost much time, are refused by all of them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns about odd metadata, which is not at stake here
        refusals = [load_by_pil(data) for _, data in files]
        for option in options:
            yield from _compare_option(option, {**OPTIONS[option], "max_pixels": max_pixels}, files, refusals)


def _compare_option(
    option: str, given: dict[str, Any], files: Sequence[tuple[str, bytes]], refusals: Sequence[str]
) -> Iterator[Disagreement]:
    pil, dali = SampleDecoder(**given), DaliDecoder(image_decode_device="cpu", **given)
    exact = "resize" not in option
    seeds = SEEDS if "crop" in option else [0]
    block: list[MediaHandle] = []
    wanted: list[tuple[int, Any]] = []
    for number, ((name, data), refusal) in enumerate(zip(files, refusals, strict=True)):
        for seed in seeds:
            ours = _decode(lambda pil=pil, data=data, seed=seed: pil.stage("jpg", data, seed=seed))
            if isinstance(ours, str) == (not refusal) and not _is_limit(ours):
                yield Disagreement(name, data, f"{option}: PIL says {refusal!r}, SampleDecoder {_show(ours)}")
            staged = _decode(lambda dali=dali, data=data, seed=seed: dali.stage("jpg", data, seed=seed))
            if isinstance(staged, MediaHandle):
                block.append(staged)
                wanted.append((number, ours))
            elif difference := _differ(ours, staged, True):
                yield Disagreement(name, data, f"{option}, staged: {difference}")
        if option == "plain" or seeds is SEEDS:
            alone = _decode(lambda data=data: dali.decode("jpg", data))
            ours = _decode(lambda data=data: pil.decode("jpg", data))
            if difference := _differ(ours, alone, exact):
                yield Disagreement(name, data, f"{option}, alone: {difference}")
    for (number, ours), outcome in zip(wanted, dali.decode_block(block), strict=True):
        value = outcome.value if isinstance(outcome, Decoded) else outcome.reason
        if difference := _differ(ours, value, exact):
            route = outcome.route if isinstance(outcome, Decoded) else "failed"
            yield Disagreement(*files[number], f"{option}, block, {route}: {difference}")


def _decode(call: Any) -> Any:
    """Returns a value, or the reason why there is none."""
    try:
        return call()
    except DecodeError as error:
        return str(error)


def _is_limit(value: object) -> bool:
    return isinstance(value, str) and ("max_pixels" in value or "cannot hold" in value or "RandomCrop wants" in value)


def _differ(ours: Any, other: Any, exact: bool) -> str:
    """Returns how two results differ; "" if they do not."""
    if isinstance(ours, str) or isinstance(other, str):
        return "" if isinstance(ours, str) and isinstance(other, str) else f"{_show(ours)} against {_show(other)}"
    a, b = np.asarray(ours), np.asarray(other)
    if a.shape != b.shape:
        return f"{a.shape} against {b.shape}"
    return "" if not exact or np.array_equal(a, b) else f"pixels differ by {np.abs(a.astype(int) - b).max()}"


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"an image of {np.shape(value)}"


def damaged_files(count: int, seed: int, only: str = "") -> list[tuple[str, bytes]]:
    """Returns damaged images of all formats, the same ones for the same arguments.

    Args:
        count: How many.
        seed: Which ones.
        only: Beginning of the names of the images to damage.
    """
    random = Random(seed)
    good = [(name, data) for name, data in sample_images().items() if name.startswith(only)]
    return [(name, damage(data, random)) for name, data in (good[i % len(good)] for i in range(count))]


def _worker(connection: Any, files: list[tuple[str, bytes]]) -> None:
    connection.send(list(compare(files)))


def compare_apart(files: list[tuple[str, bytes]]) -> list[Disagreement]:
    """Returns the disagreements that a separate process finds; a file that ends the process is one."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_worker, args=(writer, files))
    process.start()
    writer.close()
    try:
        found: list[Disagreement] = reader.recv()
    except EOFError:
        process.join()
        if len(files) == 1:
            return [Disagreement(*files[0], f"the process ended with {process.exitcode}")]
        half = len(files) // 2
        return compare_apart(files[:half]) + compare_apart(files[half:])
    process.join()
    return found


def main() -> int:
    """Damages images, compares, prints; returns 1 if any two routes disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="beginning of the names of the images to damage, such as 'jpeg'")
    parser.add_argument("--chunk", type=int, default=1000, help="files per process")
    parser.add_argument("--save", type=Path, help="where to write the files that routes disagree about")
    arguments = parser.parse_args()
    files = damaged_files(arguments.count, arguments.seed, arguments.only)
    found: list[Disagreement] = []
    for start in range(0, len(files), arguments.chunk):
        found += compare_apart(files[start : start + arguments.chunk])
        print(f"{min(start + arguments.chunk, len(files)):,} files, {len(found)} disagreements", flush=True)
    kinds = Counter(f"{disagreement.name}: {disagreement.what}" for disagreement in found)
    for kind, times in sorted(kinds.items()):
        print(f"{times} x {kind}")
    if arguments.save:
        arguments.save.write_bytes(pickle.dumps(found))
    return 1 if found else 0


if __name__ == "__main__":
    from tests.decode.agreement import main as imported_main  # so that pickles name this module

    sys.exit(imported_main())
