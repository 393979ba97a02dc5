"""What broken files do to a device's decoder, with and without this package's screening."""

from __future__ import annotations

import json

import pytest

from tests.decode.sample_images import sample_images
from tests.gpu.observations import Observations
from tests.gpu.where import Where, ending_of, run_program, values_of

pytestmark = pytest.mark.costly_dry_run  # tests/decode/dali tests the same on the CPU

SCREENED = """
import sys
from energon_dali.decode import DaliDecoder, Decoded, MediaHandle
from tests.decode.sample_images import broken_images, sample_images
decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device=sys.argv[1])
good = sample_images()["jpeg-420"]
for start in range(int(sys.argv[2])):
    block = [decoder.stage("jpg", good) for _ in range(64)]
    bad = {(start + 3 * step) % 64: data for step, data in enumerate(broken_images().values())}
    for place, data in bad.items():
        block[place] = MediaHandle("jpg", data, "jpeg", 157, 118, decoder.spec)
    outcomes = decoder.decode_block(block)
    assert all(isinstance(outcome, Decoded) for i, outcome in enumerate(outcomes) if i not in bad)
print("survived")
"""

BARE = """
import json, sys
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.backend import TensorCPU, TensorListCPU
from tests.decode.sample_images import broken_images, sample_images
device, bad, place, count = sys.argv[1], broken_images()[sys.argv[2]], int(sys.argv[3]), int(sys.argv[4])
good = sample_images()["jpeg-420"]
batches = [[good] * count, [good] * place + [bad] + [good] * (count - place - 1), [good] * count, [good] * count]
given = iter(batches)
def give():
    return TensorListCPU([TensorCPU(data, "") for data in next(given)], contiguous=False)
@pipeline_def(batch_size=count, num_threads=2, device_id=0 if device == "gpu" else None, prefetch_queue_depth=1)
def decoding():
    encoded = fn.external_source(source=give, batch=True, no_copy=True, dtype=types.UINT8, ndim=1)
    return fn.decoders.image(encoded, device="mixed" if device == "gpu" else "cpu", output_type=types.RGB)
pipeline = decoding()
pipeline.build()
for number in range(4):
    try:
        (images,) = pipeline.run()
        print(json.dumps([number, "ok", len(images)]), flush=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).partition("encountered:")[2].splitlines() if line.strip()]
        print(json.dumps([number, "error", (lines or ["?"])[0][:200]]), flush=True)
"""

GRAY = """
import sys
from nvidia.dali import fn, pipeline_def, types
from tests.decode.sample_images import sample_images
import numpy as np
device = sys.argv[1]
@pipeline_def(batch_size=1, num_threads=1, device_id=0 if device == "gpu" else None)
def decoding():
    encoded = fn.external_source(source=lambda: [np.frombuffer(sample_images()["jpeg-gray"], np.uint8)], batch=True)
    return fn.decoders.image(encoded, device="mixed" if device == "gpu" else "cpu", output_type=types.ANY_DATA)
pipeline = decoding()
pipeline.build()
print(pipeline.run()[0].shape(), flush=True)
"""


def test_broken_files_with_screening(where: Where, observe: Observations) -> None:
    """All kinds of broken files in blocks of 64: every other image is decoded, and the process survives."""
    done = run_program(SCREENED, where.kind, "20" if where.kind == "gpu" else "4")
    observe(ending=ending_of(done))
    assert (done.returncode, done.stdout.strip()) == (0, "survived"), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "place", "count"),
    [("text", 0, 64), ("text", 0, 16), ("jpeg-header-only", 5, 64), ("jpeg-half", 0, 64), ("jpeg-no-end", 0, 64)],
)
def test_broken_files_in_bare_dali(where: Where, observe: Observations, name: str, place: int, count: int) -> None:
    """Without screening, anything may happen, even a crash. Each case shows why screening is needed."""
    if where.kind == "cpu" and count == 64 and name != "text":
        count = 24  # one dry run with a size at which DALI is known to crash is enough
    done = run_program(BARE, where.kind, name, str(place), str(count))
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    observe(ending=ending_of(done), runs=runs)
    assert runs[0] == [0, "ok", count], done.stderr[-2000:]  # the test itself works
    if where.kind == "cpu" and count < 32:
        assert [run[1] for run in runs] == ["ok", "error", "ok", "ok"]  # recovery relies on this


def test_grayscale_as_any_data(where: Where, observe: Observations) -> None:
    """output_type=ANY_DATA for a grayscale JPEG ends the process on the CPU; this package never asks for it."""
    done = run_program(GRAY, where.kind)
    observe(ending=ending_of(done), printed=done.stdout.strip())
    assert done.returncode < 0 or done.stdout.strip(), done.stderr[-2000:]
    decoder = where.decoder(image_decode="torchrgb8")
    (value,) = values_of(decoder, [decoder.stage("jpg", sample_images()["jpeg-gray"])])
    assert value.shape == (3, 118, 157)
