"""A fake CUDA that computes on the CPU and records all calls, by thread and device.

`FakeCuda.install` replaces torch.cuda, DALI's view of devices, and page-locked memory. It follows the rules of CUDA:
the current device of a new thread is GPU 0, `with torch.cuda.stream(...)` restores the current device at its end, and
making a device current opens a context on it in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from energon_dali.decode.dali import decoder
from energon_dali.decode.dali.runtime import device as devices
from energon_dali.decode.dali.runtime import engine as engines
from energon_dali.decode.dali.runtime import failure
from energon_dali.decode.dali.runtime.device import Device


class Call(NamedTuple):
    """A call to CUDA or DALI."""

    thread: str
    """Name of the thread."""
    device: int
    """The GPU that was current in the thread."""
    name: str
    """Name of the call."""
    detail: Any = None
    """Object of the call."""


@dataclass(eq=False)
class Stream:
    """A CUDA stream whose work is a list of words."""

    device: int
    work: list[str] = field(default_factory=list)
    cuda: FakeCuda | None = None
    cuda_stream: int = 7
    """Its handle."""

    def wait_stream(self, other: Stream) -> None:
        self.work += other.work

    def wait_event(self, event: Event) -> None:
        if self.cuda is not None:
            self.cuda.note("wait_event", self)
        self.work += event.work

    def query(self) -> bool:
        if self.cuda is not None and not self.cuda.works:
            raise RuntimeError("CUDA error: device-side assert triggered\nDevice-side assertions were not compiled")
        return True


class Event:
    """The work that a CUDA stream had finished when the event was recorded."""

    work: list[str]

    def record(self, stream: Stream) -> None:
        self.work = list(stream.work)


class GpuTensor(torch.Tensor):
    """A tensor that claims to be on a GPU, and records the CUDA streams for which its memory is kept."""

    recorded: list[Any]
    gpu: int

    @staticmethod
    def on(gpu: int, like: torch.Tensor | None = None) -> GpuTensor:
        """Returns a tensor with the values of another one, or a zero."""
        made: Any = torch.Tensor
        tensor: GpuTensor = made._make_subclass(GpuTensor, torch.zeros(1) if like is None else like.detach().clone())
        tensor.recorded, tensor.gpu = [], gpu
        return tensor

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", getattr(self, "gpu", 0))

    def record_stream(self, stream: Any) -> None:
        self.__dict__.setdefault("recorded", []).append(stream)


class FakeCuda:
    """GPUs that do not exist.

    Args:
        gpus: Number of GPUs.
        backend: Name of torch's allocator.
        initialized: Whether torch already uses CUDA.
    """

    Event = Event

    def __init__(self, gpus: int = 2, backend: str = "native", initialized: bool = True) -> None:
        self.gpus, self.backend, self.initialized = gpus, backend, initialized
        self.calls: list[Call] = []
        self.contexts: set[int] = set()
        """GPUs on which this process has a context."""
        self.works = True
        """Whether the GPUs can compute."""
        self.captures = False
        """Whether every current CUDA stream is being captured."""
        self.free_bytes = 64 << 30
        """Memory that DALI may still allocate on each GPU."""
        self.default = [Stream(gpu, cuda=self) for gpu in range(gpus)]
        self._of_thread = threading.local()

    # --- for tests -------------------------------------------------------------------------------------------------

    def note(self, name: str, detail: Any = None) -> None:
        """Records a call of the current thread."""
        self.calls.append(Call(threading.current_thread().name, self.current_device(), name, detail))

    def named(self, name: str) -> list[Call]:
        """Returns the calls with this name."""
        return [call for call in self.calls if call.name == name]

    # --- torch.cuda ------------------------------------------------------------------------------------------------

    def is_initialized(self) -> bool:
        return self.initialized

    def is_available(self) -> bool:
        self.note("is_available")
        return self.gpus > 0

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def device_count(self) -> int:
        return self.gpus

    def get_allocator_backend(self) -> str:
        return self.backend

    def current_device(self) -> int:
        return getattr(self._of_thread, "device", 0)

    def set_device(self, device: int) -> None:
        self.initialized = True
        self._of_thread.device = device
        self.contexts.add(device)
        self.note("set_device", device)

    @property
    def streams(self) -> list[Stream]:
        """The current CUDA streams of the calling thread, by GPU."""
        if not hasattr(self._of_thread, "streams"):
            self._of_thread.streams = list(self.default)
        return self._of_thread.streams  # type: ignore[no-any-return]

    def current_stream(self, device: int | None = None) -> Stream:
        return self.streams[self.current_device() if device is None else device]

    def set_stream(self, stream: Stream) -> None:
        self.streams[stream.device] = stream
        self._of_thread.device = stream.device
        self.contexts.add(stream.device)

    def Stream(self, device: int | None = None) -> Stream:
        gpu = self.current_device() if device is None else device
        self.contexts.add(gpu)
        return Stream(gpu, cuda=self)

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, there = self.current_stream(), self.streams[stream.device]
        self.set_stream(stream)
        try:
            yield
        finally:
            self.streams[stream.device] = there
            self.set_stream(before)

    @contextlib.contextmanager
    def device(self, device: int) -> Iterator[None]:
        before = self.current_device()
        self._of_thread.device = device
        self.contexts.add(device)
        try:
            yield
        finally:
            self._of_thread.device = before  # torch restores it without opening a context

    def mem_get_info(self, device: int = 0) -> tuple[int, int]:
        return self.free_bytes, 80 << 30

    # --- replacements of torch's -----------------------------------------------------------------------------------

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
        """Replaces torch.cuda, page-locked memory, and other queries about GPUs."""
        for name in (
            "Event",
            "Stream",
            "current_device",
            "current_stream",
            "device",
            "device_count",
            "get_allocator_backend",
            "is_available",
            "is_current_stream_capturing",
            "is_initialized",
            "mem_get_info",
            "set_device",
            "set_stream",
            "stream",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self._pin(tensor))
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: self._is_pinned(tensor))
        # The result of an operation on a GpuTensor is a view of a plain tensor.
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        monkeypatch.setattr(torch.Tensor, "to", self._to(torch.Tensor.to))
        for module in (devices, decoder):
            monkeypatch.setattr(module, "sees_gpu", lambda: self.gpus > 0)
        monkeypatch.setattr(devices, "_count_gpus", lambda: self.gpus)
        monkeypatch.setattr(devices, "_of_thread", threading.local())
        monkeypatch.setattr(devices, "_process", dict.fromkeys(devices._process, False))
        monkeypatch.setattr(failure, "device_works", lambda device: device.kind == "cpu" or self.works)
        monkeypatch.setattr(failure, "has_room", lambda device, needed: needed <= self.free_bytes)
        return self

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        self.contexts.add(self.current_device())  # torch asks the driver
        return getattr(tensor, "is_pinned_here", False)

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self.note("pin_memory", tuple(tensor.shape))
        self.contexts.add(self.current_device())
        pinned: Any = tensor.clone()
        pinned.is_pinned_here = True
        return pinned  # type: ignore[no-any-return]

    def _to(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def to(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
            if not (args and str(args[0]).startswith("cuda")):
                return original(tensor, *args, **options)
            gpu = torch.device(args[0]).index or 0
            self.contexts.add(gpu)
            self.note(
                "to",
                {
                    "pinned": tensor.is_pinned(),
                    "stream": self.current_stream(gpu),
                    "waits": not options.get("non_blocking", False),
                },
            )
            self.current_stream(gpu).work.append("copy")
            return GpuTensor.on(gpu, tensor)

        return to


class TensorListGPU:
    """Replaces the DALI class of this name with a wrapper around one on the CPU."""

    def __init__(self, on_cpu: Any) -> None:
        self._on_cpu = on_cpu

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on_cpu, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._on_cpu)

    def copy_to_external(self, pointer: Any, stream: Any, *, non_blocking: bool) -> None:
        """Copies all samples, one after the other."""
        assert non_blocking
        made = np.concatenate([np.asarray(sample).ravel() for sample in self._on_cpu])
        ctypes.memmove(pointer, made.ctypes.data, made.nbytes)

    def as_cpu(self) -> Any:
        """Returns the wrapped object on the CPU."""
        return self._on_cpu


class FakeDaliPipeline:
    """A CPU pipeline that claims to run on a GPU.

    Args:
        inner: What DALI built.
        cuda: Records the calls.
        fail: Called before each output; DALI appears to raise what it raises.
    """

    def __init__(self, inner: Any, cuda: FakeCuda, fail: Callable[[], None] | None) -> None:
        self._inner, self._cuda, self._fail = inner, cuda, fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def outputs(self, cuda_stream: Any = None) -> tuple[Any, ...]:
        """Returns the outputs, of which the first is the media, on the GPU; `cuda_stream` waits for them."""
        self._cuda.note("dali.outputs", cuda_stream)
        media, *others = self._inner.outputs()
        if self._fail is not None:
            self._fail()
        cuda_stream.work.append("decoded")
        return TensorListGPU(media), *others


def install_dali(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, fail: Callable[[], None] | None = None
) -> list[FakeDaliPipeline]:
    """Makes the engines of a GPU run DALI's CPU operators; returns the list of pipelines as they are built.

    Args:
        monkeypatch: Pytest's.
        cuda: Records the calls.
        fail: Called before each output.
    """
    built: list[FakeDaliPipeline] = []
    build = engines.build_pipeline

    def build_on_cpu(options: Any, define: Any) -> FakeDaliPipeline:
        cuda.note("dali.build", options)
        assert options.device.kind == "gpu"
        options = replace(options, device=Device("cpu"))
        built.append(FakeDaliPipeline(build(options, define), cuda, fail))
        return built[-1]

    from energon_dali.decode.dali.images import dali_reader
    from energon_dali.decode.dali.images import engine as images
    from energon_dali.decode.dali.images.graph import define_graph, define_pipeline

    monkeypatch.setattr(engines, "build_pipeline", build_on_cpu)
    monkeypatch.setattr(dali_reader, "build_pipeline", build_on_cpu)
    monkeypatch.setattr(
        dali_reader,
        "define_graph",
        lambda encoded, inputs, graph, options: define_graph(
            encoded, inputs, graph, replace(options, device=Device("cpu"))
        ),
    )
    monkeypatch.setattr(
        images, "define_pipeline", lambda graph, options: define_pipeline(graph, replace(options, device=Device("cpu")))
    )
    return built


class CudaDivision(TorchFunctionMode):
    """Divides as torch does on CUDA: by a number, it multiplies by its reciprocal in float32.

    The result of a division by a tensor of one or more dimensions is the rounded quotient, there as here.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        named = getattr(func, "__name__", "")
        divides = named in ("div", "div_", "true_divide", "divide", "__truediv__", "__itruediv__")
        if divides and len(args) == 2 and isinstance(args[1], int | float):
            number = torch.tensor(args[1], dtype=torch.float32)
            given = args[0] if args[0].is_floating_point() else args[0].to(torch.float32)
            quotient = given * number.reciprocal()
            target = options.get("out", args[0] if named in ("div_", "__itruediv__") else None)
            return quotient if target is None else target.copy_(quotient)
        return func(*args, **options)


_FACTORIES = ("arange", "empty", "full", "zeros", "ones", "tensor", "as_tensor")
_WAITS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "unique")
"""Functions of torch that wait for the GPU. So do copies from memory that is not page-locked."""


class GpuWork(TorchFunctionMode):
    """Lets code that asks tensors for their device run on `GpuTensor`s, and notes what would make the host wait.

    What `torch.cuda.set_sync_debug_mode("error")` refuses on a GPU is in `waits`, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options, name = dict(kwargs or {}), getattr(func, "__name__", "")
        on_gpu = [value for value in args if isinstance(value, GpuTensor)]
        if name in _FACTORIES and str(options.get("device", "")).startswith("cuda"):
            gpu = torch.device(options.pop("device")).index or 0
            if name in ("tensor", "as_tensor"):
                self.waits.append(name)
            return GpuTensor.on(gpu, func(*args, **options))
        if name == "pin_memory":
            return args[0]
        if name in _WAITS and on_gpu:
            self.waits.append(name)
            return func(args[0].as_subclass(torch.Tensor), *args[1:], **options)
        if name in ("to", "cuda") and args and not on_gpu:
            where = str(args[1] if len(args) > 1 else options.get("device", ""))
            if where.startswith("cuda"):
                if not options.get("non_blocking", False):
                    self.waits.append(name)
                return GpuTensor.on(torch.device(where).index or 0, args[0])
        if name == "to" and on_gpu and str(args[1] if len(args) > 1 else "").startswith("cuda"):
            return args[0]
        if name == "__getitem__" and on_gpu:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in indices):
                self.waits.append("a mask")
        copies = name in ("copy_", "__setitem__") and isinstance(args[-1], torch.Tensor) and args[-1].dim() > 0
        if copies and isinstance(args[0], GpuTensor) != isinstance(args[-1], GpuTensor):
            self.waits.append(name)
        return func(*args, **options)


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that would start a kernel or a copy: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in ("empty", "empty_like", "new_empty", "_unsafe_view", "detach", "alias"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))
