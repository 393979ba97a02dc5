"""Arenas of GPU memory that the trainer opens by CUDA IPC: opened once, reused when nobody sees them any more.

The decode process copies the GPU tensors of a batch into an arena (within GPU memory, on its current CUDA stream) and
records the arena's event `ready`, which the trainer's CUDA stream waits for. When the trainer has dropped every view,
the event `released` is recorded after the work submitted to its CUDA streams until then, and the decode process's
CUDA stream waits for it before it writes there again. The host waits for nothing.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.errors import DeviceFailedError
from energon_dali.loader.decode_process import cuda_ipc
from energon_dali.loader.decode_process.cuda_ipc import DeviceBytes
from energon_dali.loader.processes.shared_memory import ArenaPool

if TYPE_CHECKING:
    import torch

    from energon_dali.loader.processes.tensor_table import Segment

logger = logging.getLogger("energon_dali.loader")

_ALIGNMENT = 512


@dataclass(slots=True, eq=False)
class DevicePiece:
    """The part of a batch that is on one GPU."""

    arena: int
    """Number of its arena."""
    device: int
    """Index of the GPU."""
    extents: list[tuple[int, int, int]]
    """(number of the segment, offset in bytes, size in bytes)."""
    handles: tuple[bytes, bytes, bytes] | None
    """Of a new arena: IPC handles of its memory, its event `ready`, and its event `released`. None for a known one."""


class _DeviceArena:
    """An arena in the decode process."""

    def __init__(self, number: int, device: int, capacity: int) -> None:
        import torch

        self.number = number
        self.device = device
        self.capacity = capacity
        self.address = cuda_ipc.allocate(device, capacity)
        self.is_new = True
        with torch.cuda.device(device):
            event: Any = torch.cuda.Event
            self.ready = event(interprocess=True)
            self.released = event(interprocess=True)
            self.handles = (
                cuda_ipc.export(device, self.address),
                bytes(self.ready.ipc_handle()),
                bytes(self.released.ipc_handle()),
            )


class DeviceArenaStore(ArenaPool[_DeviceArena]):
    """The arenas of the decode process. Those that were dropped are freed when the trainer has closed them.

    Args:
        spare: Free arenas to keep per GPU, at least 1.
    """

    granule = cuda_ipc.GRANULE

    def __init__(self, spare: int) -> None:
        super().__init__(spare)
        self._leaving: dict[int, _DeviceArena] = {}

    def _make(self, number: int, device: int, capacity: int) -> _DeviceArena:
        return _DeviceArena(number, device, capacity)

    def store(self, segments: list[Segment]) -> list[DevicePiece]:
        """Copies segments into arenas, one per GPU, on its current CUDA stream; returns at once.

        Raises:
            DeviceFailedError: There is no room for another arena.
        """
        import torch

        by_device: dict[int, list[tuple[int, Segment]]] = {}
        for number, segment in enumerate(segments):
            by_device.setdefault(segment.device, []).append((number, segment))
        pieces = []
        for device, group in by_device.items():
            extents = []
            end = 0
            for number, segment in group:
                extents.append((number, end, segment.size))
                end += -(-segment.size // _ALIGNMENT) * _ALIGNMENT
            arena = self.take(end, device)
            with torch.cuda.device(device):
                stream = torch.cuda.current_stream(device)
                if not arena.is_new:
                    stream.wait_event(arena.released)
                for (_, offset, size), (_, segment) in zip(extents, group, strict=True):
                    source = DeviceBytes(segment.address, size).as_tensor(device)
                    DeviceBytes(arena.address + offset, size).as_tensor(device).copy_(source, non_blocking=True)
                    _record_stream(segment.tensors, stream)
                arena.ready.record(stream)
            pieces.append(DevicePiece(arena.number, device, extents, arena.handles if arena.is_new else None))
            arena.is_new = False
        return pieces

    def _drop(self, arena: _DeviceArena) -> None:
        super()._drop(arena)
        self._leaving[arena.number] = arena

    def free(self, number: int) -> None:
        """Frees an arena that the trainer has closed.

        Raises:
            DeviceFailedError: The driver refuses.
        """
        arena = self._leaving.pop(number)
        cuda_ipc.free(arena.device, arena.address)


def _record_stream(tensors: list[torch.Tensor], stream: torch.cuda.Stream) -> None:
    """Keeps torch from reusing the memory of tensors before the work on a CUDA stream is done."""
    import torch

    if torch.cuda.get_allocator_backend() == "native":
        for tensor in tensors:
            tensor.record_stream(stream)


class _OpenArena:
    """An arena in the trainer's process."""

    def __init__(self, device: int, handles: tuple[bytes, bytes, bytes]) -> None:
        import torch

        self.device = device
        self.address = cuda_ipc.open_memory(device, handles[0])
        event: Any = torch.cuda.Event
        self.ready = event.from_ipc_handle(torch.device("cuda", device), handles[1])
        self.released = event.from_ipc_handle(torch.device("cuda", device), handles[2])


def _is_captured(stream: Any) -> bool:
    """Returns whether a CUDA stream is being captured for a CUDA graph, by any thread."""
    import torch

    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


class _Root:
    """All views of an arena refer to one of these."""

    __slots__ = ("__weakref__",)


class DeviceViews:
    """The arenas of a decode process as the trainer sees them."""

    def __init__(self) -> None:
        self._streams: dict[int, list[Any]] = {}
        self._releasing: dict[int, Any] = {}
        self._open: dict[int, _OpenArena] = {}
        self._watched: dict[int, weakref.ref[_Root]] = {}
        self._released: deque[int] = deque()
        self._closed: list[int] = []
        self.on_nothing_seen: Callable[[], None] | None = None
        """Called when the last view of the last arena is gone."""

    @property
    def seen(self) -> bool:
        """Whether somebody still sees an arena."""
        return bool(self._watched)

    def view(self, pieces: list[DevicePiece]) -> list[torch.Tensor]:
        """Returns a batch's segments on GPUs, by number, as uint8 tensors that the current CUDA stream may use.

        Raises:
            DeviceFailedError: The driver cannot open an arena.
        """
        import torch

        segments: dict[int, torch.Tensor] = {}
        for piece in pieces:
            if piece.handles is not None:
                self._open[piece.arena] = _OpenArena(piece.device, piece.handles)
            arena = self._open[piece.arena]
            torch.cuda.current_stream(piece.device).wait_event(arena.ready)
            root = self._watch(piece.arena)
            for number, offset, size in piece.extents:
                segments[number] = DeviceBytes(arena.address + offset, size, root).as_tensor(piece.device)
        return [segments[number] for number in range(len(segments))]

    def _watch(self, number: int) -> _Root:
        root = _Root()
        released, watched = self._released, self._watched
        views = weakref.ref(self)

        # Called where the last tensor is dropped, in any thread: it takes no lock.
        def lost(_: object) -> None:
            watched.pop(number, None)
            released.append(number)
            owner = views()
            if owner is not None and owner.on_nothing_seen is not None and not watched:
                owner.on_nothing_seen()

        watched[number] = weakref.ref(root, lost)
        return root

    def take_released(self) -> list[int]:
        """Returns the arenas whose views have all gone since the last call.

        Each one's event `released` is recorded after the work submitted so far to any CUDA stream that `note_streams`
        saw. While one of these is captured for a CUDA graph, nothing is returned: a wait for it would join the capture.
        """
        import torch

        released: list[int] = []
        if self._released and any(_is_captured(used) for streams in self._streams.values() for used in tuple(streams)):
            return released
        while self._released:
            released.append(self._released.popleft())
        for number in released:
            arena = self._open[number]
            with torch.cuda.device(arena.device):
                if arena.device not in self._releasing:
                    make: Any = torch.cuda.Stream
                    self._releasing[arena.device] = make(arena.device)
                stream = self._releasing[arena.device]
                for used in tuple(self._streams.get(arena.device, ())):
                    stream.wait_stream(used)
                arena.released.record(stream)
        return released

    def note_streams(self) -> None:
        """Notes the CUDA streams that are current in the calling thread, the trainer's, on the GPUs of batches."""
        import torch

        for device in {arena.device for arena in tuple(self._open.values())}:
            streams = self._streams.setdefault(device, [])
            stream = torch.cuda.current_stream(device)
            if stream not in streams:
                streams.append(stream)

    def drop(self, numbers: list[int]) -> None:
        """Closes arenas that the decode process dropped; nobody has seen them since they were released.

        Waits for the work that uses them, and not for the device: the trainer may be capturing a CUDA graph there,
        which forbids that.

        Raises:
            DeviceFailedError: The driver refuses.
        """
        for number in numbers:
            self._open[number].released.synchronize()
            self._close(number)

    def _close(self, number: int) -> None:
        arena = self._open.pop(number)
        cuda_ipc.close_memory(arena.device, arena.address)
        self._closed.append(number)

    def close(self) -> None:
        """Closes all arenas, which nobody sees any more; failures are logged."""
        import torch

        for number in tuple(self._open):
            try:
                torch.cuda.synchronize(self._open[number].device)  # work that uses it ends first
                self._close(number)
            except (RuntimeError, DeviceFailedError) as error:  # CUDA is broken: the memory goes with this process
                logger.warning("GPU memory of the decode process was not closed: %s", error)
        self._releasing.clear()
        self._streams.clear()

    def take_closed(self) -> list[int]:
        """Returns the arenas that were closed since the last call, so that the decode process can free them."""
        closed, self._closed = self._closed, []
        return closed
