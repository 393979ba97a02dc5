"""Batches in page-locked memory: the tensors move, and nothing else changes. CUDA is faked; pinning is a copy."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass, field
from typing import Any

import pytest
import torch

from energon_dali import Batch, WorkerConfig, edataclass
from energon_dali.loader.cuda_handoff import CudaHandoff, pin_for_trainer
from energon_dali.loader.get_loader import get_loader
from energon_dali.loader.loader_options import wants_pinning
from energon_dali.samples.transfer import pin_batch as pin
from tests.fake_cuda import FakeCuda
from tests.loader.numbers_dataset import tree

Pair = namedtuple("Pair", "first second")


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A host with a GPU."""
    return FakeCuda(gpus=1, initialized=False).install(monkeypatch)


@dataclass
class Derived:
    tokens: torch.Tensor
    scale: InitVar[int]
    lengths: Any = field(init=False)
    made: int = field(init=False, default=0)

    def __post_init__(self, scale: int) -> None:
        self.lengths = torch.tensor([self.tokens.numel() * scale])
        self.made += 1


@dataclass(frozen=True, slots=True)
class Frozen:
    pixels: torch.Tensor


@edataclass
class Images(Batch):
    images: torch.Tensor
    notes: Any = None


def test_fields_that_are_not_arguments_and_further_attributes_stay() -> None:
    batch = Derived(torch.arange(3), scale=2)
    batch.made = 7
    batch.extra = ["kept", torch.ones(1)]  # type: ignore[attr-defined]
    pinned = pin(batch)
    assert pinned is not batch
    assert (pinned.made, pinned.extra[0], pinned.lengths.tolist()) == (7, "kept", [6])
    assert pinned.extra[1].is_pinned()
    assert pinned.tokens.is_pinned()
    assert pinned.lengths.is_pinned()
    assert not batch.tokens.is_pinned()
    assert pin(Frozen(torch.ones(2))).pixels.is_pinned()


def test_containers_keep_their_class_and_what_belongs_to_it() -> None:
    by_name: Any = defaultdict(list, a=torch.ones(1))
    pinned = pin(
        {
            "x": by_name,
            "y": OrderedDict(b=torch.ones(1)),
            "z": UserDict(c=torch.ones(1)),
            "p": Pair(torch.ones(1), "text"),
            "l": [torch.ones(1), (torch.ones(1), None)],
        }
    )
    assert type(pinned["x"]) is defaultdict
    assert pinned["x"]["new"] == []
    assert pinned["x"]["a"].is_pinned()
    assert isinstance(pinned["y"], OrderedDict)
    assert pinned["y"]["b"].is_pinned()
    assert type(pinned["z"]) is UserDict
    assert pinned["z"]["c"].is_pinned()
    assert pinned["p"].first.is_pinned()
    assert pinned["p"].second == "text"
    assert pinned["l"][0].is_pinned()
    assert pinned["l"][1][0].is_pinned()
    assert not by_name["a"].is_pinned()


def test_batches_and_objects_with_a_method_of_their_own() -> None:
    class Own:
        def __init__(self, said: str) -> None:
            self.said = said

        def pin_memory(self) -> Own:
            return Own(f"pinned {self.said}")

    assert pin(Own("itself")).said == "pinned itself"
    assert pin([Own("inside"), torch.ones(1)])[0].said == "pinned inside"
    sparse = torch.eye(2).to_sparse()
    batch = Images(__key__=["a"], __restore_key__=(), images=torch.ones(2), notes={"sparse": sparse})
    pinned = pin(batch)
    assert type(pinned) is Images
    assert pinned.images.is_pinned()
    assert pinned.notes["sparse"] is sparse  # not every torch pins sparse tensors


def test_a_cuda_that_is_counted_and_does_not_work_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    batch = {"x": torch.ones(1)}
    assert pin(batch) is batch
    assert wants_pinning("auto", before_fork=True)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_forked_decode_process_is_forked_before_cuda_is_asked(start_method: str, cuda: FakeCuda) -> None:
    """CUDA does not work in a process that was forked after `torch.cuda.is_available()`."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    loader = get_loader(tree(config, lengths=[10], block_size=1), decode_process=True, start_method=start_method)
    assert (cuda.named("is_available") == []) == (start_method == "fork")
    if start_method == "fork":
        with loader as batches:
            next(iter(batches))
        assert cuda.calls[0].thread != "MainThread"  # called by the thread that pins, after the fork


@pytest.mark.parametrize("trainer_has_gpu", [False, True])
def test_a_thread_that_only_pins_opens_no_context_on_another_gpu(
    trainer_has_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new thread's current GPU is 0 in every rank, and asking whether memory is page-locked opens a context there."""
    cuda = FakeCuda(gpus=4, initialized=False).install(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "3")
    if trainer_has_gpu:
        torch.cuda.set_device(2)
    found: list[torch.Tensor] = []

    def work(handoff: CudaHandoff) -> None:
        handoff.enter()
        found.append(pin_for_trainer(torch.ones(2)))

    thread = threading.Thread(target=work, args=(CudaHandoff(torch.cuda),))
    thread.start()
    thread.join(60)
    assert found[0].is_pinned_here  # type: ignore[attr-defined]
    assert cuda.contexts == {2 if trainer_has_gpu else 3}


def test_a_loader_that_only_pins_takes_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(gpus=4, initialized=False).install(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "3")
    config = WorkerConfig(rank=0, world_size=1, num_workers=1)
    with contextlib.closing(get_loader(tree(config), pin_memory=True)) as loader:
        next(iter(loader))
    assert cuda.contexts == {3}


def test_a_thread_of_the_trainer_keeps_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(gpus=4, initialized=False).install(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "3")
    pin_for_trainer([])
    assert cuda.contexts == set()
