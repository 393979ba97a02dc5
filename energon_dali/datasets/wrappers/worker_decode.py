"""Finishes, in the workers, the media handles that the rank would decode on its few CPU threads."""

from __future__ import annotations

from typing import Any

from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.stream import Planned, StreamContext, StreamIterator, WrapperIterator
from energon_dali.decode import Decoder, MediaHandle
from energon_dali.decode.interface import map_handles


class WorkerDecodeDataset(PassThroughDataset[Any]):
    """Yields elements whose handles are ready for the rank: what it would decode on its CPU threads is decoded.

    It is placed below the worker border, after the hooks that see handles. Without workers it changes nothing, since
    the rank's threads then decode more in parallel.

    Args:
        dataset: Yields samples with handles.
        decoder: The decoder of the rank.
        decodes: Whether handles may be decoded. If not, as where a packing buffer will hold thousands of them, what
            decides about them is looked up: headers of frames, and first frames.
    """

    plan_obstacle = None
    shown_in_config = False  # what comes when does not depend on where media are decoded
    keeps_steps = True

    def __init__(self, dataset: SavableDataset[Any], decoder: Decoder, *, decodes: bool) -> None:
        super().__init__(dataset)
        self.decoder = decoder
        self.decodes = decodes

    def describe(self) -> str:
        return f"WorkerDecodeDataset(decoder={type(self.decoder).__name__})"

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        inner = self.dataset.open(context)
        return _FinishIterator(inner, self) if self.worker_config.num_workers else inner


class _FinishIterator(WrapperIterator[Any]):
    def __init__(self, inner: StreamIterator[Any], dataset: WorkerDecodeDataset) -> None:
        super().__init__(inner)
        self._decoder, self._decodes = dataset.decoder, dataset.decodes

    def __next__(self) -> Any:
        finished: dict[int, MediaHandle] = {}

        def finish(handle: MediaHandle) -> MediaHandle:
            # A handle that is in two fields is decoded once.
            if id(handle) not in finished:
                finished[id(handle)] = self._decoder.finish_in_worker(handle, decodes=self._decodes)
            return finished[id(handle)]

        return map_handles(next(self._inner), finish)

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        return self._inner.skip(count, planned)
