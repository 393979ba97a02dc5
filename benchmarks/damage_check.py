"""`python -m benchmarks.damage_check`: what the look for damaged images costs DaliDecoder on the CPU.

Reads, stages and decodes the same images to uint8 with and without the look, in turns, in one process. Prints the CPU
time of both (the operating system's, of all threads) and the median of their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from benchmarks.tuning_media import encode_image, jpegs, photographs
from energon_dali import DaliDecoder
from energon_dali.decode import Decoded

SIZE = (500, 375)
TARGET_BYTES = 104_000
COUNT = 64


def main() -> None:
    """Prints a line per kind of image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=41)
    arguments = parser.parse_args()
    pictures = photographs(8, SIZE, threads=2)
    for kind, files in {
        "jpeg of 104 KB": jpegs(8, SIZE, TARGET_BYTES, threads=2),
        "jpeg progressive": [encode_image(picture, "jpeg progressive") for picture in pictures],
        "png": [encode_image(picture, "png") for picture in pictures],
    }.items():
        with TemporaryDirectory() as folder:
            paths = [Path(folder) / str(number) for number in range(COUNT)]
            for number, path in enumerate(paths):
                path.write_bytes(files[number % len(files)])
            measure(kind, paths, arguments.repetitions)


def measure(kind: str, paths: list[Path], repetitions: int) -> float:
    """Prints and returns the CPU time with the look over that without it.

    Args:
        kind: What to call the files.
        paths: One block of files.
        repetitions: How often each side is measured.
    """
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")
    for _ in range(3):
        seconds_of(decoder, paths)
    with_look, without = [], []
    for number in range(repetitions):
        for looks in (True, False) if number % 2 else (False, True):  # neither is always first
            if looks:
                with_look.append(seconds_of(decoder, paths))
            else:
                with no_look():
                    without.append(seconds_of(decoder, paths))
    ratio = statistics.median(a / b for a, b in zip(with_look, without, strict=True))
    each = [1e6 * statistics.median(seconds) / len(paths) for seconds in (with_look, without)]
    print(f"{kind}: {each[0]:.0f} us per image with the look for damage, {each[1]:.0f} us without; ratio {ratio:.4f}")
    return ratio


def seconds_of(decoder: DaliDecoder, paths: list[Path]) -> float:
    """Returns the CPU time of reading, staging and decoding a block, in seconds.

    Raises:
        RuntimeError: Something was not decoded by DALI.
    """
    start = time.process_time()
    outcomes = decoder.decode_block([decoder.stage("image.jpg", path.read_bytes()) for path in paths])
    seconds = time.process_time() - start
    if not all(isinstance(outcome, Decoded) and outcome.route == "dali-cpu" for outcome in outcomes):
        raise RuntimeError("Not all images were decoded by DALI.")
    return seconds


@contextmanager
def no_look() -> Iterator[None]:
    """Leaves out what is done for damage alone: following a JPEG's markers, and the sums of a PNG's chunks."""
    with (
        patch("energon_dali.decode.screen.has_whole_scans", lambda data: True),
        patch("energon_dali.decode.headers.png._has_right_sum", lambda *_: True),
    ):
        yield


if __name__ == "__main__":
    main()
