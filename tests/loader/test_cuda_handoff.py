"""Device and CUDA stream of the rank's thread, and how it hands batches on, with a CUDA that only records calls."""

from __future__ import annotations

import threading
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from energon_dali import WorkerConfig
from energon_dali.errors import ConfigError
from energon_dali.loader.cuda_handoff import CudaHandoff, find_cuda_tensors, strided_parts
from energon_dali.loader.get_loader import get_savable_loader
from energon_dali.samples.base import Sample
from tests.fake_cuda import FakeCuda, GpuTensor, Stream
from tests.loader.numbers_dataset import tree


def run_rank(handoff: CudaHandoff, cuda: FakeCuda, element: Any) -> tuple[Any, int]:
    """Returns (ready events, device) of a thread that makes an element: "made" on every current stream."""
    done: list[Any] = []

    def work() -> None:
        handoff.enter()
        for stream in cuda.streams:
            stream.work.append("made")
        done.extend((handoff.record(element), cuda.current_device()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    return done[0], done[1]


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_the_rank_works_on_the_trainers_device_and_its_batch_is_ready_there(backend: str) -> None:
    cuda = FakeCuda(backend=backend)
    cuda.set_device(1)
    trainer = Stream(1, ["weights"])
    cuda.set_stream(trainer)
    batch = {"image": GpuTensor.on(1)}
    handoff = CudaHandoff(cuda)
    ready, device = run_rank(handoff, cuda, batch)
    assert device == 1
    assert trainer.work == (["weights"] if backend == "native" else ["weights", "made"])  # no step waits for a batch
    handoff.receive(batch, ready)
    assert trainer.work[-2:] == ["weights", "made"]
    assert batch["image"].recorded == ([trainer] if backend == "native" else [])


def test_a_trainer_that_changes_its_stream_and_a_second_gpu() -> None:
    cuda = FakeCuda()
    first, second = Stream(0), Stream(0)
    cuda.set_stream(first)
    batch = [GpuTensor.on(0), GpuTensor.on(1)]
    handoff = CudaHandoff(cuda)
    ready, _ = run_rank(handoff, cuda, batch)
    assert [device for device, _ in ready] == [0, 1]
    cuda.set_stream(second)
    handoff.receive(batch, ready)
    assert second.work[-1] == "made"
    assert batch[0].recorded == [first, second]
    assert batch[1].recorded == [cuda.current_stream(1)]


def test_without_cuda_nothing_is_asked_of_it() -> None:
    handoff = CudaHandoff(FakeCuda(initialized=False))
    handoff.enter()
    assert handoff.record({"x": torch.zeros(1)}) == ()
    handoff.receive(None, ())
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_the_memory_of_sparse_and_jagged_tensors_is_kept() -> None:
    class OnGpu:
        """A tensor on a GPU of which only the layout and its parts are read."""

        is_cuda = True
        device = torch.device("cuda", 0)

        def __init__(self, layout: torch.layout, *parts: str) -> None:
            self.layout = layout
            self.parts = {name: GpuTensor.on(0) for name in parts}

        def __getattr__(self, name: str) -> Any:
            return lambda: self.parts.get(name)

    tensors = [
        OnGpu(torch.sparse_coo, "_indices", "_values"),
        OnGpu(torch.sparse_csr, "crow_indices", "col_indices", "values"),
        OnGpu(torch.sparse_bsc, "ccol_indices", "row_indices", "values"),
        OnGpu(torch.jagged, "values", "offsets"),  # its lengths are None
    ]
    for tensor in tensors:
        assert strided_parts(tensor) == list(tensor.parts.values())  # type: ignore[arg-type]
    cuda = FakeCuda()
    stream = Stream(0)
    CudaHandoff(cuda)._record_stream(tensors[0], stream)
    assert [part.recorded for part in tensors[0].parts.values()] == [[stream], [stream]]
    assert strided_parts(torch.eye(3).to_sparse()) == []  # parts on the CPU have no stream


def test_finds_tensors_wherever_batches_hold_them() -> None:
    class Holder:
        def __init__(self, value: Any) -> None:
            self.value = value
            self.itself = self

    @dataclass(slots=True)
    class Slotted:
        value: Any

    tensors = [GpuTensor.on(0) for _ in range(6)]
    sample: Any = Sample(__key__="a", __restore_key__=())
    sample.added = tensors[5]
    batch = [
        Holder(tensors[0]),
        Slotted((tensors[1], "text")),
        UserDict(a=[tensors[2]]),
        {"b": {"c": tensors[3]}},
        tensors[4],
        tensors[4],
        sample,
        torch.zeros(2),
        None,
        3,
    ]
    assert {id(tensor) for tensor in find_cuda_tensors(batch)} == set(map(id, tensors))
    assert len(list(find_cuda_tensors(batch))) == 6


def test_no_batch_is_lost_when_one_is_taken_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda().install(monkeypatch)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    with get_savable_loader(tree(config, lengths=[10], block_size=1), pin_memory=False) as loader:
        batches = iter(loader)
        first, state = next(batches), loader.save_state_rank()
        cuda.captures = True
        with pytest.raises(ConfigError, match="A batch was taken while this thread captures a CUDA graph"):
            next(batches)
        cuda.captures = False
        assert loader.save_state_rank() == state
        assert (first[-1], next(batches)[-1]) == (0, 1)
