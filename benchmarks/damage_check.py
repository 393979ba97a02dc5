"""`python -m benchmarks.damage_check`: what checking for damaged images costs DaliDecoder on the CPU.

A worker process reads and stages the same images with and without the look, in turns; this one decodes them to uint8.
Prints the CPU time of all of it (the operating system's, of all threads) with the look and without, and their ratio.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.tuning_media import encode_image, jpegs, photographs
from energon_dali import DaliDecoder
from energon_dali.decode import Decoded
from energon_dali.decode.formats import FORMATS

SIZE = (500, 375)
TARGET_BYTES = 104_000
COUNT = 64


def main() -> None:
    """Prints a line per kind of image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=41)
    arguments = parser.parse_args()
    images = photographs(8, SIZE, threads=2)
    for kind, files in {
        "jpeg of 104 KB": jpegs(8, SIZE, TARGET_BYTES, threads=2),
        "jpeg progressive": [encode_image(image, "jpeg progressive") for image in images],
        "png": [encode_image(image, "png") for image in images],
    }.items():
        with TemporaryDirectory() as folder:
            paths = [Path(folder) / str(number) for number in range(COUNT)]
            for number, path in enumerate(paths):
                path.write_bytes(files[number % len(files)])
            measure(kind, paths, arguments.repetitions)


def measure(kind: str, paths: list[Path], repetitions: int) -> float:
    """Prints and returns the ratio of the CPU time with the check to that without it.

    Args:
        kind: What to call the files.
        paths: One block of files.
        repetitions: How often each side is measured.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with_look, without = pool.submit(stage_in_turns, paths, repetitions).result()
    decoder = make_decoder()
    handles = [decoder.stage("image.jpg", path.read_bytes()) for path in paths]
    decoding = statistics.median(decode_seconds(decoder, handles) for _ in range(repetitions + 3))
    with_look, without = with_look + decoding, without + decoding
    ratio = with_look / without
    print(
        f"{kind}: {1e6 * with_look / len(paths):.0f} us per image with the look for damage, "
        f"{1e6 * without / len(paths):.0f} us without; ratio {ratio:.4f}"
    )
    return ratio


def make_decoder() -> DaliDecoder:
    """Returns the decoder that is measured."""
    return DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


def stage_in_turns(paths: list[Path], repetitions: int) -> tuple[float, float]:
    """Returns the median CPU time of reading and staging a block with and without the check, in seconds."""
    decoder = make_decoder()

    def seconds() -> float:
        start = time.process_time()
        for path in paths:
            decoder.stage("image.jpg", path.read_bytes())
        return time.process_time() - start

    seconds()
    with_look, without = [], []
    for number in range(repetitions):
        for looks in (True, False) if number % 2 else (False, True):  # neither is always first
            if looks:
                with_look.append(seconds())
            else:
                with no_look():
                    without.append(seconds())
    return statistics.median(with_look), statistics.median(without)


def decode_seconds(decoder: DaliDecoder, handles: list[Any]) -> float:
    """Returns the CPU time of decoding a block, in seconds.

    Raises:
        RuntimeError: Something was not decoded by DALI.
    """
    start = time.process_time()
    outcomes = decoder.decode_block(handles)
    seconds = time.process_time() - start
    if not all(isinstance(outcome, Decoded) and outcome.route == "dali-cpu" for outcome in outcomes):
        raise RuntimeError("Not all images were decoded by DALI.")
    return seconds


@contextmanager
def no_look() -> Iterator[None]:
    """Disables the checks for damage: following the markers of a JPEG, and the checksums of PNG chunks."""
    with (
        patch.dict(FORMATS, jpeg=replace(FORMATS["jpeg"], is_whole=None)),
        patch("energon_dali.decode.formats.png._has_valid_checksum", lambda *_: True),
    ):
        yield


if __name__ == "__main__":
    main()
