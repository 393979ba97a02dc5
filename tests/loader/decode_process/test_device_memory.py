"""The arenas on GPUs, with host memory in place of a GPU's: who waits for what, and what is reused."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from energon_dali.loader.decode_process import cuda_ipc, device_memory, process
from energon_dali.loader.decode_process.device_memory import DeviceArenaStore, DeviceViews
from energon_dali.loader.processes.tensor_table import Segment


class StandIn:
    """A driver's memory, events and CUDA streams; records the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: dict[int, Any] = {}
        self.opened: list[int] = []
        self.said: list[str] = []
        monkeypatch.setattr(cuda_ipc, "allocate", self.allocate)
        monkeypatch.setattr(cuda_ipc, "free", lambda device, address: self.memory.pop(address))
        monkeypatch.setattr(cuda_ipc, "export", lambda device, address: address.to_bytes(8, "little"))
        monkeypatch.setattr(cuda_ipc, "open_memory", self.open_memory)
        monkeypatch.setattr(cuda_ipc, "close_memory", lambda device, address: self.opened.remove(address))
        monkeypatch.setattr(device_memory, "DeviceBytes", _HostBytes)
        for name, value in {
            "device": lambda device: contextlib.nullcontext(),
            "current_stream": lambda device: _Stream(self),
            "Stream": lambda device: _Stream(self, "release"),
            "synchronize": lambda device: self.said.append("synchronize"),
            "Event": lambda **_: _Event(self),
            "get_allocator_backend": lambda: "another",
            "stream": self.stream,
            "is_current_stream_capturing": lambda: self.current in self.captured,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        torch.cuda.Event.from_ipc_handle = lambda device, handle: _Event(self, handle.decode())
        self.events = 0
        self.captured: list[Any] = []
        self.current: Any = None

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.current = stream
        yield
        self.current = None

    def allocate(self, device: int, size: int) -> int:
        block = (ctypes.c_ubyte * size)()
        self.memory[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def open_memory(self, device: int, handle: bytes) -> int:
        self.opened.append(int.from_bytes(handle, "little"))
        return self.opened[-1]


class _HostBytes:
    def __init__(self, address: int, size: int, owner: object = None) -> None:
        self.block = (ctypes.c_ubyte * size).from_address(address)
        self.block.owner = owner

    def as_tensor(self, device: int) -> torch.Tensor:
        return torch.frombuffer(self.block, dtype=torch.uint8)


class _Event:
    def __init__(self, driver: StandIn, name: str | None = None) -> None:
        if name is None:
            name = f"event {driver.events}"
            driver.events += 1
        self.driver, self.name = driver, name

    def ipc_handle(self) -> bytes:
        return self.name.encode()

    def record(self, stream: object) -> None:
        self.driver.said.append(f"record {self.name}")

    def synchronize(self) -> None:
        self.driver.said.append(f"host waits for {self.name}")


class _Stream:
    def __init__(self, driver: StandIn, name: str = "trainer") -> None:
        self.driver, self.name = driver, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.name == self.name

    def wait_stream(self, stream: _Stream) -> None:
        self.driver.said.append(f"{self.name} waits for {stream.name}")

    def wait_event(self, event: _Event) -> None:
        self.driver.said.append(f"wait {event.name}")


def segment(value: int, size: int) -> Segment:
    tensor = torch.full((size,), value, dtype=torch.uint8)
    return Segment(tensor.data_ptr(), size, 0, [tensor])


def test_an_arena_goes_over_comes_back_and_is_freed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = StandIn(monkeypatch)
    store, views = DeviceArenaStore(1), DeviceViews()

    def cross(*segments: Segment) -> list[torch.Tensor]:
        return views.view(pickle.loads(pickle.dumps(store.store(list(segments)))))

    def give_back() -> list[int]:
        unseen = views.take_released()
        for number in unseen:
            store.give_back(number)
        return unseen

    first = cross(segment(1, 700), segment(2, 90))
    assert [(tensor.sum().item(), len(tensor)) for tensor in first] == [(700, 700), (180, 90)]
    assert driver.said == ["record event 0", "wait event 0"]
    second = cross(segment(3, 5))
    views.note_streams()
    views.note_streams()
    kept = first.pop()
    del first
    assert give_back() == []
    del kept
    gc.collect()
    driver.said.clear()
    driver.captured = [_Stream(driver)]  # for a CUDA graph: a wait for it would join the capture
    assert give_back() == []
    assert driver.said == []
    driver.captured = []
    assert give_back() == [0]
    assert driver.said == ["release waits for trainer", "record event 1"]
    third = cross(segment(4, 800))
    assert driver.said[2:] == ["wait event 1", "record event 0", "wait event 0"]
    assert len(driver.memory) == len(driver.opened) == 2
    assert second[0].tolist() == [3] * 5
    assert views.seen

    ended = []
    views.on_nothing_seen = lambda: ended.append(True)
    del second, third
    assert ended == [True]
    assert not views.seen
    assert sorted(give_back()) == [0, 1]  # one more than the spare one
    driver.said.clear()
    views.drop(store.take_dropped())
    assert len(driver.said) == 1
    assert driver.said[0].startswith("host waits for event")  # and not for the device
    assert len(driver.opened) == 1
    assert len(driver.memory) == 2  # not freed before it was closed
    for number in views.take_closed():
        store.free(number)
    assert len(driver.memory) == 1
    large = cross(segment(5, 3 << 20))  # the other is too small, and is dropped
    assert large[0].sum() == 5 * (3 << 20)
    assert len(store.take_dropped()) == 1


@pytest.mark.parametrize("seen", [False, True], ids=["closed", "closed while a tensor is held"])
def test_the_trainer_closes_every_arena_before_the_process_that_owns_it_ends(
    seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA requires memory to be closed where it was opened before it is freed where it was allocated."""
    driver = StandIn(monkeypatch)
    open_at_the_end: list[int] = []

    def ended(wake: io.FileIO) -> None:
        open_at_the_end.append(len(driver.opened))
        wake.close()

    monkeypatch.setattr(process, "end_members", lambda members, wake, owner: ended(wake))
    for turn in range(3):
        store, views, owner = DeviceArenaStore(1), DeviceViews(), _Holder()
        batches = [views.view(pickle.loads(pickle.dumps(store.store([segment(1, 700)])))) for _ in range(2)]
        views.note_streams()
        if not seen:
            batches.clear()
            gc.collect()
        theirs, ours = os.pipe()
        end = weakref.finalize(owner, process._end_when_unseen, views, [], io.FileIO(ours, "w"), os.getpid())
        end()
        assert len(open_at_the_end) == (turn if seen else turn + 1)
        batches.clear()
        gc.collect()
        os.close(theirs)
    assert open_at_the_end == [0, 0, 0]
    assert driver.opened == []
    assert "synchronize" in driver.said  # work that uses the memory is done


class _Holder:
    """Replaces a DecodeProcess."""


class _LeavingViews(DeviceViews):
    """Loses its last view, as if in another thread, right after `seen` was read."""

    roots: list[Any]

    @property
    def seen(self) -> bool:
        seen = super().seen
        self.roots.clear()
        return seen


@pytest.mark.parametrize("how", ["closed", "forgotten", "at the same time"])
def test_a_process_ends_once_when_the_last_view_of_its_memory_is_gone(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def end_members(members: list[Any], wake: io.FileIO, owner: int) -> None:
        ended.append(how)
        wake.close()

    monkeypatch.setattr(process, "end_members", end_members)
    views, owner = _LeavingViews() if how == "at the same time" else DeviceViews(), _Holder()
    roots = [views._watch(0), views._watch(1)]
    if isinstance(views, _LeavingViews):
        views.roots = roots
    theirs, ours = os.pipe()
    os.set_blocking(theirs, False)
    end = weakref.finalize(owner, process._end_when_unseen, views, [], io.FileIO(ours, "w"), os.getpid())
    if how == "forgotten":  # the user dropped the loader and kept its tensors
        del owner, views
    else:
        end()
    if how != "at the same time":
        assert ended == []
        with pytest.raises(BlockingIOError):  # the pipe is open
            os.read(theirs, 1)
        roots.pop()
        gc.collect()
        assert ended == []
        roots.clear()
    gc.collect()
    assert ended == [how]
    assert os.read(theirs, 1) == b""
    os.close(theirs)
    assert not process._views_to_outlive
