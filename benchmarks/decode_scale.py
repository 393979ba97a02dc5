"""What decoding JPEGs at a smaller scale costs and what it does to pixels, by library.

    python -m benchmarks.decode_scale                         # table of pixels, and PIL's times
    pip install simplejpeg "pyvips[binary]" PyTurboJPEG
    python -m benchmarks.decode_scale --libraries pil,pil-rows,simplejpeg,pyvips,ffmpeg,dali

Times are CPU time of one thread per image, the smallest of several rounds; the libraries take turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.data.photographs import add_grain, cut, encode
from benchmarks.machine import describe_machine
from energon_dali import RandomResizedCrop, Resize, SampleDecoder
from energon_dali.decode.formats.jpeg import open_reduced
from energon_dali.decode.geometry import handle_geometry
from energon_dali.decode.reduction import find_reduction

SIZES = {"1024 x 768": (1024, 768), "1920 x 1080": (1920, 1080), "4000 x 3000": (4000, 3000)}
FACTORS = (1, 2, 4, 8)
ROWS = 2 / 3
"""Share of the rows that "pil-rows" decodes."""
OUT = 224


def make_files(size: tuple[int, int], count: int) -> list[bytes]:
    """Returns photographs with grain, as JPEGs of quality 88."""
    rng = np.random.default_rng(1)
    return [encode(add_grain(rng, cut(rng, width=size[0], height=size[1]).image, 2.0), "jpg", 88) for _ in range(count)]


# --- libraries: each decodes a file at 1/factor of its size --------------------------------------------------------


def by_pil(data: bytes, factor: int) -> None:
    """PIL's draft: libjpeg's scaled inverse DCT."""
    image = Image.open(BytesIO(data))
    if factor > 1:
        image.draft(None, (image.width // factor, image.height // factor))
    image.load()


def by_pil_rows(data: bytes, factor: int) -> None:
    """The same without the last rows, as this package does it."""
    image = Image.open(BytesIO(data))
    open_reduced(data, factor, int(image.height * ROWS)).load()


def by_simplejpeg(data: bytes, factor: int) -> None:
    """libjpeg-turbo 3 through simplejpeg."""
    library: Any = importlib.import_module("simplejpeg")
    height, width, _, _ = library.decode_jpeg_header(data)
    least = {"min_height": -(-height // factor), "min_width": -(-width // factor)} if factor > 1 else {}
    library.decode_jpeg(data, "RGB", **least, min_factor=1)


def by_pyvips(data: bytes, factor: int) -> None:
    """Libvips' shrink on load."""
    library: Any = importlib.import_module("pyvips")
    library.Image.jpegload_buffer(data, shrink=factor).numpy()


def by_ffmpeg(data: bytes, factor: int) -> None:
    """FFmpeg's lowres, and swscale to RGB."""
    import av

    codec: Any = av.CodecContext.create("mjpeg", "r")
    codec.thread_count = 1
    codec.options = {"lowres": str(factor.bit_length() - 1)}
    (frame,) = codec.decode(av.Packet(data))
    frame.to_ndarray(format="rgb24")


def by_dali(data: bytes, factor: int) -> None:
    """DALI's CPU decoder, which has no scale: the middle of the image, of 1/factor of its sides."""
    pipelines = by_dali.__dict__.setdefault("pipelines", {})
    if factor not in pipelines:
        dali: Any = importlib.import_module("nvidia.dali")
        start, extent = 0.5 - 0.5 / factor, 1 / factor

        @dali.pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
        )
        def define() -> Any:
            encoded = dali.fn.external_source(name="encoded", device="cpu", dtype=dali.types.UINT8, ndim=1)
            return dali.fn.decoders.image_slice(
                encoded, rel_start=[start, start], rel_shape=[extent, extent], axis_names="HW"
            )

        pipelines[factor] = define()
        pipelines[factor].build()
    pipelines[factor].feed_input("encoded", [np.frombuffer(data, np.uint8)])
    pipelines[factor].run()


LIBRARIES: dict[str, Callable[[bytes, int], None]] = {
    "pil": by_pil,
    "pil-rows": by_pil_rows,
    "simplejpeg": by_simplejpeg,
    "pyvips": by_pyvips,
    "ffmpeg": by_ffmpeg,
    "dali": by_dali,
}


def measure_times(names: Sequence[str], files: Sequence[bytes], rounds: int) -> dict[str, dict[str, float]]:
    """Returns CPU milliseconds per image by library and factor; the smallest of the rounds."""
    best: dict[str, dict[str, float]] = {name: {} for name in names}
    for _ in range(rounds):
        for factor in FACTORS:
            for name in names:
                began = time.process_time()
                for data in files:
                    LIBRARIES[name](data, factor)
                spent = (time.process_time() - began) / len(files) * 1e3
                best[name][str(factor)] = round(min(spent, best[name].get(str(factor), spent)), 3)
    return best


# --- what it does to pixels ----------------------------------------------------------------------------------------


def compare_pixels(files: Sequence[bytes], operation: Any, seeds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Returns, by scale and factor, how results differ from those at full size, in levels of 0 to 255."""
    exact = SampleDecoder(image_decode="rgb8", operations=[operation])
    found: dict[str, dict[str, list[np.ndarray[Any, np.dtype[np.int16]]]]] = {}
    for scale in ("fast", "fastest"):
        decoder = SampleDecoder(image_decode="rgb8", operations=[operation], decode_scale=scale)
        for number, data in enumerate(files):
            for seed in range(seeds):
                handle = decoder.make_handle("jpg", data, seed=1000 * number + seed)
                reduction = find_reduction(handle, handle_geometry(handle))
                factor = 1 if reduction is None else reduction.factor
                a = exact.make_handle("jpg", data, seed=1000 * number + seed).decode().astype(np.int16)
                found.setdefault(scale, {}).setdefault(str(factor), []).append(handle.decode().astype(np.int16) - a)
    return {
        scale: {factor: _summary(differences) for factor, differences in sorted(factors.items())}
        for scale, factors in found.items()
    }


def _summary(differences: Sequence[Any]) -> dict[str, float]:
    errors = [float(np.mean(one.astype(np.float64) ** 2)) for one in differences]
    noise = [99.0 if error == 0 else 10 * np.log10(255**2 / error) for error in errors]
    return {
        "results": len(differences),
        "psnr_db_median": round(float(np.median(noise)), 1),
        "psnr_db_least": round(min(noise), 1),
        "mean": round(float(np.mean([np.abs(one).mean() for one in differences])), 2),
        "largest": int(max(np.abs(one).max() for one in differences)),
    }


def main() -> None:
    """Measures, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", default="pil,pil-rows", help=f"of {', '.join(LIBRARIES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to store the results")
    arguments = parser.parse_args()
    os.environ.setdefault("VIPS_CONCURRENCY", "1")
    result: dict[str, Any] = {"machine": describe_machine(), "times_ms": {}, "pixels": {}}
    for name, size in SIZES.items():
        files = make_files(size, 3 if size[0] > 2000 else 6)
        result["times_ms"][name] = measure_times(arguments.libraries.split(","), files, arguments.rounds)
        for label, operation in (("crop", RandomResizedCrop(OUT)), ("resize", Resize((OUT, OUT)))):
            pixels = compare_pixels(files, operation, 4 if label == "crop" else 1)
            result["pixels"].setdefault(name, {})[label] = pixels
        print(json.dumps({name: {"ms": result["times_ms"][name], "pixels": result["pixels"][name]}}, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
