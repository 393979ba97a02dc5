"""Decodes the media handles of samples in the worker that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from energon_dali.datasets.base import PassThroughDataset, SavableDataset
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy
from energon_dali.datasets.planned import Planned
from energon_dali.datasets.stream import StreamContext, StreamIterator, WrapperIterator
from energon_dali.datasets.worker_border import decode_elements, handles_of, put_outcomes
from energon_dali.decode import DecodeFailure, Decoder
from energon_dali.errors import DecodeError
from energon_dali.samples.base import Key


class DecodeDataset(PassThroughDataset[Any]):
    """Yields the samples of the dataset below with their media handles decoded, one sample at a time.

    A sample with a part that cannot be decoded is dropped, counted and named.

    Args:
        dataset: Yields samples with handles.
        decoder: A decoder that works in workers.
        failure_tolerance: Consecutive samples that cannot be decoded after which the run ends.
    """

    shown_in_config = False  # what comes when does not depend on where media are decoded

    def __init__(
        self, dataset: SavableDataset[Any], decoder: Decoder, *, failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE
    ) -> None:
        super().__init__(dataset)
        self.decoder = decoder
        self.failure_tolerance = failure_tolerance

    def plan_obstacle(self) -> None:
        """Returns None: elements pass, if they can be decoded."""

    def describe(self) -> str:
        return f"DecodeDataset(decoder={type(self.decoder).__name__})"

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _DecodeIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the sample of a key, made again and decoded.

        Raises:
            DecodeError: A part cannot be decoded.
        """
        return decode_elements(self.decoder, [self.dataset.restore_sample(restore_key)], strict=True)[0]

    def restore_samples(self, keys: Sequence[Key]) -> list[Any]:
        return [
            element if isinstance(element, Exception) else decode_elements(self.decoder, [element])[0]
            for element in self.dataset.restore_samples(keys)
        ]


class _DecodeIterator(WrapperIterator[Any]):
    def __init__(self, dataset: DecodeDataset, context: StreamContext) -> None:
        super().__init__(dataset.dataset.open(context))
        self._decoder = dataset.decoder
        self._policy = FailurePolicy("decode", dataset.failure_tolerance, context, dataset.worker_config)
        self._metrics = context.metrics

    def __next__(self) -> Any:
        while True:
            element = next(self._inner)
            handles = handles_of(element)
            if not handles:
                return element
            outcomes = self._decoder.decode_block(handles)
            for outcome in outcomes:
                self._metrics.count("route.failed" if isinstance(outcome, DecodeFailure) else f"route.{outcome.route}")
            element, failure = put_outcomes(element, outcomes)
            if failure is None:
                self._policy.on_success()
                return element
            self._policy.on_failure(DecodeError(failure.reason, failure.format, failure.route), element)

    def skip(self, count: int) -> int:
        return self._inner.skip(count)

    def plan(self, count: int) -> Planned:
        return self._inner.plan(count)

    def read_ahead(self, count: int) -> None:
        self._inner.read_ahead(count)
