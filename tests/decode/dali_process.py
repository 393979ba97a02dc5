"""A process that passes files to DALI and prints the results. It may crash, which is what the tests look for.

Reads files from standard input, each after its length (uint32). With "parse", prints per file "width height" as DALI's
parser sees it, or "refused". With "decode", runs them through a pipeline in batches of 48 and prints "done".
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

BATCH_SIZE = 48


def read_files() -> Iterator[bytes]:
    """Yields the files from standard input."""
    while head := sys.stdin.buffer.read(4):
        yield sys.stdin.buffer.read(struct.unpack("<I", head)[0])


def parse() -> None:
    """Prints what the parser says."""
    from nvidia import nvimgcodec

    for data in read_files():
        try:
            stream = nvimgcodec.CodeStream(data)
            print(stream.width, stream.height, flush=True)
        except RuntimeError:
            print("refused", flush=True)


def decode() -> None:
    """Decodes batches and continues after errors."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.backend import TensorCPU, TensorListCPU

    batch: list[bytes] = []

    def give() -> TensorListCPU:
        return TensorListCPU([TensorCPU(data, "") for data in batch], contiguous=False)

    @pipeline_def(batch_size=BATCH_SIZE, num_threads=2, device_id=None, prefetch_queue_depth=1)
    def decoding() -> object:
        encoded = fn.external_source(source=give, batch=True, no_copy=True, dtype=types.UINT8, ndim=1)
        return fn.decoders.image(encoded, device="cpu", output_type=types.RGB, adjust_orientation=False)

    pipeline = decoding()
    pipeline.build()
    files = list(read_files())
    for start in range(0, len(files), BATCH_SIZE):
        batch = files[start : start + BATCH_SIZE]
        try:
            pipeline.run()
        except RuntimeError as error:
            if "Failed to decode sample #" not in str(error):
                print("unexpected:", str(error)[:200].replace("\n", " "), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    {"parse": parse, "decode": decode}[sys.argv[1]]()
