"""A device that fails at work: a clear error ends the run; no sample is skipped as bad, and none is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu.observations import Observations
from tests.gpu.where import Where, ending_of, run_program

BREAK = """
import faulthandler, resource, sys
faulthandler.dump_traceback_later(80, exit=True)  # a program that hangs says where
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # and one that aborts writes no core
import torch
from energon_dali.decode.dali.runtime import engine
def break_device(kind):
    if kind == "gpu":  # an index out of range inside a kernel: the context is lost
        torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]
        return
    class Broken:
        def __init__(self, inner):
            self.inner = inner
        def __getattr__(self, name):
            return getattr(self.inner, name)
        def outputs(self, cuda_stream=None):
            raise RuntimeError("encountered:\\n\\nCUDA runtime API error cudaErrorAssert (710)")
    build = engine.build_pipeline
    engine.build_pipeline = lambda *args: Broken(build(*args))
    from energon_dali.decode.dali import close_engines
    close_engines()
"""

DECODER = (
    BREAK
    + """
from energon_dali.decode import DaliDecoder
from tests.decode.sample_images import sample_images
kind = sys.argv[1]
decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device=kind)
block = [decoder.stage("jpg", sample_images()["jpeg-420"]) for _ in range(32)]
print(len(decoder.decode_block(block)), flush=True)
break_device(kind)
for _ in range(3):
    try:
        outcomes = decoder.decode_block(block)
        if kind == "gpu":
            outcomes[0].value.sum().item()
        print("decoded", flush=True)
    except Exception as error:
        print("raised", type(error).__name__, str(error).splitlines()[0][:300], flush=True)
"""
)

LOADER = (
    BREAK
    + """
from pathlib import Path
import energon_dali as ed
from tests.loader.dataset_folder import captioning_dataset
kind, folder = sys.argv[1], Path(sys.argv[2])
class Encoder(ed.DefaultTaskEncoder):
    decoder = ed.DaliDecoder(image_decode="torchrgb8", image_decode_device=kind)
    seen = 0
    def encode_sample(self, sample):
        Encoder.seen += 1
        if Encoder.seen == 9:
            break_device(kind)
        sample.image = sample.image.float().mean().item()
        return sample
if __name__ == "__main__":
    dataset = ed.get_train_dataset(
        captioning_dataset(folder), worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0), batch_size=4,
        task_encoder=Encoder(), shuffle_buffer_size=None, max_samples_per_sequence=None,
    )
    loader = ed.get_loader(dataset)
    try:
        for number, batch in enumerate(loader):
            print("batch", number, flush=True)
            if number > 40:
                break
    except Exception as error:
        print("raised", type(error).__name__, str(error).splitlines()[0][:300], flush=True)
    print("skipped", len(loader.stats().failures), flush=True)
"""
)


def test_the_decoder_says_that_the_device_failed(where: Where, observe: Observations, warm_python: str) -> None:
    done = run_program(DECODER, where.kind, python=warm_python if where.kind == "cpu" else sys.executable)
    lines = done.stdout.splitlines()
    observe(ending=ending_of(done), printed=lines, log=done.stderr[-1500:])
    assert lines[0] == "32", done.stderr[-2000:]
    assert "decoded" not in lines  # nothing that might be wrong is delivered
    # After a CUDA error, DALI's own threads may end the process; by then the log says what happened.
    assert any("DeviceFailedError" in line or "CUDA" in line for line in [*lines[1:], *done.stderr.splitlines()])


@pytest.mark.costly_dry_run
def test_the_run_ends_and_no_sample_is_blamed(where: Where, observe: Observations, tmp_path: Path) -> None:
    done = run_program(LOADER, where.kind, str(tmp_path / "captions"))
    lines = done.stdout.splitlines()
    observe(ending=ending_of(done), printed=lines[-5:], log=done.stderr[-1500:])
    assert lines[0] == "batch 0", done.stderr[-2000:]
    assert len(lines) < 20
    assert any(line.startswith("raised") for line in lines) or done.returncode < 0
    assert "skipped 0" in lines or done.returncode < 0
