"""Faults on a user's first GPU run that a fake CUDA cannot show: contexts, codecs, pinning, memory, two ranks."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import WorkerConfig
from energon_dali.decode.dali.images.codecs import nvjpeg_version
from energon_dali.decode.operations import CenterCrop
from energon_dali.loader.get_loader import get_loader
from tests.decode.sample_images import sample_images
from tests.gpu.observations import Observations
from tests.gpu.where import Where, ending_of, run_program, values_of
from tests.loader.dataset_folder import captioning_dataset
from tests.loader.numbers_dataset import tree

MIB = 1 << 20
CONTEXTS = """
import ctypes, torch
def contexts():
    "The GPUs on which this process has a context, as the driver says."
    if not torch.cuda.is_available():
        return []
    driver, found = ctypes.CDLL("libcuda.so.1"), []
    for ordinal in range(torch.cuda.device_count()):
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        found += [ordinal] * bool(active.value)
    return found
"""
RANK = (
    CONTEXTS
    + """
import json, os, sys
from itertools import islice
from pathlib import Path
import energon_dali as ed
from energon_dali.decode.dali.runtime.device import resolve_device
from tests.decode.sample_images import sample_images
kind, folder, when = sys.argv[1:]
class Encoder(ed.DefaultTaskEncoder):
    device = "cpu" if when == "pins" else kind
    decoder = ed.DaliDecoder(image_decode="torchrgb8", image_decode_device=device, operations=[ed.Resize((32, 32))])
if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    if kind == "gpu" and when == "before":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dataset = ed.get_train_dataset(
        Path(folder), worker_config=ed.WorkerConfig(rank=rank, world_size=2, num_workers=1), batch_size=4,
        task_encoder=Encoder(), shuffle_buffer_size=None, max_samples_per_sequence=None,
    )
    with ed.get_loader(dataset, pin_memory=kind == "gpu") as loader:
        devices = {str(batch.image.device) for batch in islice(loader, 6)}
        routes = loader.stats().routes
    if when == "before":  # PIL's pool copies to the GPU too
        decoder = ed.DaliDecoder(image_decode="torchrgb8", image_decode_device=kind)
        images = sample_images()
        handles = [decoder.make_handle("gif", images["gif"]), decoder.make_handle("jpg", images["jpeg-420"])]
        devices |= {str(outcome.value.device) for outcome in decoder.decode_block(handles)}
    print(json.dumps({"devices": sorted(devices), "contexts": contexts(), "routes": routes}))
"""
)
FULL = """
import sys
import torch
from energon_dali.decode import DaliDecoder
from tests.decode.sample_images import encode
from PIL import Image
kind = sys.argv[1]
decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device=kind)
large = encode(Image.effect_noise((4000, 3000), 40).convert("RGB"), "JPEG")
block = [decoder.stage("jpg", large) for _ in range(16)]
if kind == "gpu":
    small = decoder.decode_block([decoder.stage("jpg", encode(Image.new("RGB", (32, 32)), "JPEG"))])
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - (48 << 20), dtype=torch.uint8, device="cuda")
else:
    from energon_dali.decode.dali.runtime import engine
    build = engine.build_pipeline
    class Full:
        def __init__(self, inner):
            self.inner = inner
        def __getattr__(self, name):
            return getattr(self.inner, name)
        def outputs(self, cuda_stream=None):
            raise RuntimeError("encountered:\\n\\nCUDA runtime API error cudaErrorMemoryAllocation (2): out of memory")
    engine.build_pipeline = lambda *args: Full(build(*args))
try:
    routes = [getattr(outcome, "route", "failed") for outcome in decoder.decode_block(block)]
    print("decoded", sorted(set(routes)), flush=True)
except Exception as error:
    print("raised", type(error).__name__, str(error).splitlines()[0][:400], flush=True)
"""


@pytest.mark.costly_dry_run
@pytest.mark.parametrize("when", ["before", "after", "pins"])
def test_two_ranks_on_one_host_have_a_context_on_their_own_gpu_alone(
    where: Where, observe: Observations, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer takes its GPU before the loader is iterated, or after: then LOCAL_RANK decides.

    A loader that decodes on the CPU only pins, in a thread that must not open a context on GPU 0 either.
    """
    captioning_dataset(tmp_path / "captions")
    count = torch.cuda.device_count() if where.kind == "gpu" else 0
    found = []
    for rank in range(2):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        done = run_program(RANK, where.kind, str(tmp_path / "captions"), when)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    observe(ranks=found)
    for rank, seen in enumerate(found):
        own = rank % count if count else 0
        assert seen["devices"] == ([f"cuda:{own}"] if count and when != "pins" else ["cpu"])
        assert seen["contexts"] == ([own] if count else [])


def test_which_codec_decodes_a_crop(where: Where, observe: Observations) -> None:
    """DALI does not say who decoded; the kernels that ran do. Pixels do not: an H100's JPEG engine gives PIL's."""
    from torch.profiler import ProfilerActivity, profile

    decoder = where.decoder(image_decode="torchrgb8", operations=[CenterCrop(64)])
    names = ["jpeg-420", "jpeg-422", "jpeg-444", "png-rgb"]
    handles = [decoder.make_handle("part", sample_images()[name]) for name in names]
    values_of(decoder, handles)
    kinds = [ProfilerActivity.CUDA] if where.kind == "gpu" else [ProfilerActivity.CPU]
    with profile(activities=kinds) as profiler:
        outcomes: Any = decoder.decode_block(handles)
        where.finish()
    kernels = sorted({event.key[:80] for event in profiler.key_averages()}) if where.kind == "gpu" else []
    levels = {
        name: int((outcome.value.cpu().int() - handle.decode().int()).abs().max())
        for name, outcome, handle in zip(names, outcomes, handles, strict=True)
    }
    routes = dict(zip(names, [outcome.route for outcome in outcomes], strict=True))
    observe(nvjpeg=nvjpeg_version(), routes=routes, levels_from_pil=levels, kernels=kernels[:60])
    assert levels["png-rgb"] == 0
    if where.kind == "gpu":
        assert routes == {name: "dali-host" if name == "png-rgb" else "dali-gpu" for name in names}
        assert any("nvjpeg" in kernel for kernel in kernels), "no kernel of nvJPEG ran: CPU threads decoded the crops"
    else:
        assert set(routes.values()) == {"dali-cpu"}
        assert set(levels.values()) == {0}


@pytest.mark.costly_dry_run
def test_a_full_gpu_ends_the_run_and_blames_no_image(where: Where, observe: Observations) -> None:
    done = run_program(FULL, where.kind)
    observe(ending=ending_of(done), printed=done.stdout.splitlines(), log=done.stderr[-1500:])
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-2000:]
    # If it fits after all, PIL must have decoded nothing.
    assert lines[-1].startswith("raised DeviceFailedError") or lines[-1] == "decoded ['dali-gpu']"
    if where.kind == "cpu":
        assert "No sample caused this" in lines[-1] or "out of memory" in lines[-1]


@dataclass
class Measured:
    pixels: torch.Tensor
    length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.length = self.pixels.numel()


def make_batch(kind: str, stream: int, epoch: int, at: int) -> Any:
    """Returns a batch of 8 MiB on the device, with a part on the CPU."""
    batch = Measured(torch.full((1000,), at))
    batch.length = at
    return {"device": torch.full((8 * MIB,), at % 251, dtype=torch.uint8, device=kind), "host": batch}


def batches(where: Where, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    make = functools.partial(make_batch, where.torch_device)
    return get_loader(tree(config, lengths=[1000], make=make, block_size=1), **options)


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("decode_process", [False, True])
def test_pinned_batches_are_the_batches(where: Where, decode_process: bool) -> None:
    with batches(where, decode_process=decode_process) as loader:
        iterator = iter(loader)
        for at in range(3):
            batch = next(iterator)
            host = batch["host"]
            assert host.length == at
            assert host.pixels.is_pinned() == (where.kind == "gpu")
            assert int(batch["device"].max()) == at


@pytest.mark.usefixtures("warm_processes")
def test_closed_loaders_leave_no_memory_open(where: Where, observe: Observations) -> None:
    """A decode process shares GPU memory with the trainer: both release it when the loader is closed."""
    used = []
    for _ in range(4):
        with batches(where, decode_process=True) as loader:
            iterator = iter(loader)
            for _ in range(5):
                batch = next(iterator)
            del batch, iterator
        where.finish()
        used.append(where.used_bytes())
    observe(used_mib=[round(size / MIB, 1) for size in used])
    assert used[-1] - used[0] < 16 * MIB
