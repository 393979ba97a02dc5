"""A source whose shards DALI's own reader reads (`feed="native"`), for orders that are made of runs."""

from __future__ import annotations

import copy
import shlex
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.hooks import FailurePolicy
from energon_dali.datasets.native_rows import RowPlanner, split_batch
from energon_dali.datasets.planned import Planned
from energon_dali.datasets.restore_key import Key, set_restore_key
from energon_dali.datasets.source import NAME, RawFailure, ReadFailure, SourceDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.worker_border import decode_elements, handles_of
from energon_dali.decode import DaliDecoder, Decoded, DecodeFailure
from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError, DecodeError, EmptyDatasetError
from energon_dali.plan import OrderSpec
from energon_dali.shards import RawSample, ShardReader
from energon_dali.shards.documents.state_entries import count_of

DEFAULT_LANES = 16
"""Default of `parallel_shard_iters` in training."""

_BYPASSED = ("__call__", "decode", "decode_block", "make_handle", "stage", "submit_block")
"""Methods of a decoder that DALI's own reader does not call."""

ROWS_PER_READER = 8192
"""Rows per reader of DALI: building it takes some 3 us per row and holds the interpreter lock."""


@dataclass(slots=True, eq=False)
class _Planned:
    """A sample of the order, before it is read."""

    shard: int
    sample: int
    epoch: int
    seed: int
    parts: list[str] | None
    """Its wanted parts except the image, if DALI reads it; None if the block engine decodes it."""
    after: tuple[int, int]
    """(epoch of the order, position) after it."""


class NativeSourceDataset(SavableDataset[Any]):
    """Yields the samples of a source with their image decoded, which DALI reads from the shards in the planned order.

    DALI must not read a sample with no image, with several, or with one whose header was not eligible when the dataset
    was prepared. Such a sample is read here and decoded by the block engine.

    Args:
        source: The order, the reader and the loader of samples.
        decoder: Decodes on its device.
        batch_size: Samples per run of the pipeline.

    Raises:
        ConfigError: The dataset or its order does not suit DALI's reader; the message says what to change.
    """

    runs_in_rank = True

    def __init__(self, source: SourceDataset, decoder: DaliDecoder, *, batch_size: int) -> None:
        super().__init__(worker_config=source.worker_config)
        if not isinstance(source.reader, ShardReader):
            raise ConfigError(
                'feed="native" reads folders of tar shards only. Use feed="block", which takes every dataset.'
            )
        self.source = source
        self.reader: ShardReader = source.reader
        self.decoder = decoder
        self.batch_size = batch_size
        self._check()

    def _check(self) -> None:
        folder, order = self.reader.folder, self.source.order
        if not folder.root.is_local and not folder.path.startswith("s3://"):
            raise ConfigError(
                f'feed="native" reads local shards and s3:// URLs, and {folder.path} is neither. Use feed="block", '
                "which reads every storage."
            )
        changed = [name for name in _BYPASSED if getattr(type(self.decoder), name) is not getattr(DaliDecoder, name)]
        if changed:
            raise ConfigError(
                f'feed="native" lets DALI read and decode without calling the decoder, and '
                f'{type(self.decoder).__name__} overrides {", ".join(changed)}. Use feed="block", which calls it.'
            )
        first_shard = order.base.shard[:1].tolist()
        checked = all(len(folder.index.shard(shard).formats) > 1 for shard in first_shard)
        if folder.index.source != "extents" or not checked:
            raise ConfigError(
                f'feed="native" needs the header check that `energon-dali prepare` writes, and {folder.path} has '
                f'none. Run `energon-dali prepare {shlex.quote(str(folder.path))}`, or use feed="block".'
            )
        if not isinstance(order, OrderSpec):
            raise ConfigError(
                f'feed="native" follows whole passes over {folder.path}, and blend_epochized repeats or divides '
                'its samples. Use feed="block".'
            )
        _check_runs(order)

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    def unknown_to_plan(self) -> None:
        """Returns None: the order is that of the source."""

    def describe(self) -> str:
        return f"NativeSourceDataset({self.source.name}, repeat={self.source.repeat})"

    def config(self) -> dict[str, Any]:
        """Returns the config of the source, since both feeds yield the same samples in the same order."""
        return self.source.config()

    def at_position(self, number: int) -> NativeSourceDataset:
        twin = copy.copy(self)
        twin.source = self.source.at_position(number)
        return twin

    def with_old_ranges(self) -> NativeSourceDataset:
        source = self.source.with_old_ranges()
        if source is self.source:
            return self
        twin = copy.copy(self)
        twin.source = source
        return twin

    def len_stream(self, stream: int) -> int:
        return self.source.len_stream(stream)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _NativeIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the sample of a key, read again and decoded by the block engine.

        Raises:
            DecodeError: It cannot be decoded.
        """
        return decode_elements(self.decoder, [self.source.restore_sample(restore_key)], strict=True)[0]

    def wanted(self, name: str) -> bool:
        """Returns whether a part is wanted."""
        return self.reader.part_filter is None or bool(self.reader.part_filter(name))


def _check_runs(order: OrderSpec) -> None:
    """Checks that an order takes its samples slice by slice.

    The settings decide, not the slices that a stream happens to have, because those change with the number of
    streams.

    Raises:
        ConfigError: The order reads slices in turn, or shuffles them together.
    """
    reasons, remedies = [], []
    lanes, window = order.parallel_shard_iters, order.shuffle_buffer_size
    if order.shuffle and lanes > 1:
        default = ", the default of training" if lanes == DEFAULT_LANES else ""
        reasons.append(f"reads {lanes} slices in turn (parallel_shard_iters={lanes}{default})")
        remedies.append("set parallel_shard_iters=1")
    if order.shuffle and window > 1 and not order.window_in_slice:
        reasons.append(f"shuffles samples over slices (shuffle_buffer_size={window})")
        remedies.append("set window_in_slice=True or leave shuffle_buffer_size out")
    if reasons:
        raise ConfigError(
            f'feed="native" lets DALI read one slice after the other, and this order {" and ".join(reasons)}. To keep '
            f'the native feed, {" and ".join(remedies)}; or use feed="block", which follows every order.'
        )


class _NativeIterator(StreamIterator[Any]):
    def __init__(self, dataset: NativeSourceDataset, context: StreamContext) -> None:
        self._dataset = dataset
        self._context = context
        source = dataset.source
        self._order = source.order.stream(context.stream)
        self._read_policy, self._load_policy, self._decode_policy = (
            FailurePolicy(stage, source.failure_tolerance, context, source.worker_config)
            for stage in ("read", "load", "decode")
        )
        self._epoch = 0
        self._position = 0
        self._samples: Iterator[tuple[_Planned, RawSample | DatasetError | DecodeFailure]] | None = None

    def __next__(self) -> Any:
        while True:
            if self._samples is None:
                self._samples = self._read_rows()
            planned, raw = next(self._samples, (None, None))
            if planned is None:
                self._samples = None
                continue
            self._epoch, self._position = planned.after
            sample = self._load(planned, raw)
            if sample is not None:
                return sample

    def _read_rows(self) -> Iterator[tuple[_Planned, Any]]:
        """Returns an iterator over the next rows; raises StopIteration at the end of an epoch that is not repeated."""
        source = self._dataset.source
        if not source.repeat and self._position >= self._order.num_samples(self._epoch):
            self._epoch, self._position = self._epoch + 1, 0
            raise StopIteration
        pieces, after = self._next_positions()
        shards, indices, epochs = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        locations = list(zip(shards.tolist(), indices.tolist(), strict=True))
        numbers = np.fromiter((self._dataset.reader.index_of(*location) for location in locations), np.int64)
        seeds = source.load.seeds(epochs, numbers)
        planner = RowPlanner(self._dataset.reader.folder.index, self._dataset.wanted, self._dataset.decoder.spec)
        plan = [
            _Planned(shard, sample, epoch, seed, planner.add(shard, sample, seed), position)
            for (shard, sample), epoch, seed, position in zip(locations, epochs.tolist(), seeds, after, strict=True)
        ]
        return self._run(plan, planner)

    def _next_positions(self) -> tuple[list[tuple[Any, Any, Any]], list[tuple[int, int]]]:
        """Returns ((shards, indices, passes) of the next rows by epoch, (epoch, position) after each of them)."""
        source = self._dataset.source
        epoch, position, wanted = self._epoch, self._position, ROWS_PER_READER
        pieces, after = [], []
        empty_epochs = 0
        while wanted:
            order = self._order.epoch(epoch)
            taken = min(wanted, len(order) - position)
            if taken:
                pieces.append(order.samples(position, position + taken))
                after += [(epoch, following) for following in range(position + 1, position + taken + 1)]
                wanted -= taken
            if not source.repeat:
                break
            empty_epochs = 0 if len(order) else empty_epochs + 1
            if empty_epochs > source.worker_config.layout.num_streams:
                raise EmptyDatasetError(
                    f"{source.name} has no sample to repeat: its split is empty. Choose another split_part."
                )
            epoch, position = epoch + 1, 0
        return pieces, after

    def _run(self, plan: list[_Planned], planner: RowPlanner) -> Iterator[tuple[_Planned, Any]]:
        """Yields what was read for each planned sample, in order."""
        from energon_dali.decode.dali.images.dali_reader import DaliReader

        reader = self._dataset.reader
        folder = reader.folder
        rows, components = planner.rows(), planner.components
        names = iter(planner.names)
        native: deque[tuple[Any, dict[str, bytes]]] = deque()
        paths = [str(folder.root / name) for name in folder.shard_names]
        batches: Any = iter(())
        if rows:
            batches = DaliReader(
                self._dataset.decoder,
                paths,
                rows,
                components=components,
                image="image",
                batch_size=self._dataset.batch_size,
            )
        try:
            for planned in plan:
                if planned.parts is None:
                    (raw,) = reader.read([planned.shard], [planned.sample])
                    yield planned, raw
                    continue
                if not native:
                    native.extend(split_batch(next(batches), components))
                outcome, parts = native.popleft()
                key, image_name = next(names)
                self._context.metrics.count("samples.read")
                self._context.metrics.count(
                    f"route.{'failed' if isinstance(outcome, DecodeFailure) else outcome.route}"
                )
                found: dict[str, Any] = {image_name: outcome, **{name: parts[name] for name in planned.parts}}
                yield (
                    planned,
                    RawSample(
                        key,
                        folder.shard_names[planned.shard],
                        reader.index_of(planned.shard, planned.sample),
                        planned.shard,
                        planned.sample,
                        found,
                    ),
                )
        finally:
            if rows:
                batches.close()

    def _load(self, planned: _Planned, raw: Any) -> Any:
        """Returns the sample, or None if it was dropped."""
        if isinstance(raw, DatasetFormatError):
            raise raw  # an invalid index: every sample of it would fail
        if isinstance(raw, DatasetError):
            unread = ReadFailure(self._dataset.reader, planned.shard, planned.sample, self._dataset.source.name)
            self._read_policy.on_failure(raw, unread, epoch=planned.epoch)
            return None
        self._read_policy.on_success()
        failure = next((part for part in raw.parts.values() if isinstance(part, DecodeFailure)), None)
        try:
            if failure is not None:
                raise DecodeError(failure.reason, failure.format, failure.route)
            sample = self._dataset.source.load(raw, planned.seed)
            # DALI does not read videos here: clips are still handles.
            if planned.parts is None or handles_of(sample):
                (sample,) = decode_elements(self._dataset.decoder, [sample], strict=True)
            for route, count in self._dataset.source.load.take_routes().items():
                self._context.metrics.count(f"route.{route}", count)
        except DecodeError as error:
            parts = {name: part for name, part in raw.parts.items() if not isinstance(part, (Decoded, DecodeFailure))}
            raw.parts = parts
            self._decode_policy.on_failure(error, RawFailure(raw, self._dataset.source.name), epoch=planned.epoch)
            return None
        except Exception as error:
            raw.parts = {}
            self._load_policy.on_failure(error, RawFailure(raw, self._dataset.source.name), epoch=planned.epoch)
            return None
        self._load_policy.on_success()
        self._decode_policy.on_success()
        return set_restore_key(sample, (NAME, raw.index, planned.epoch))

    def skip(self, count: int) -> int:
        position = self._of_source()
        skipped = position.skip(count)
        self._go_to(position)
        return skipped

    def plan(self, count: int) -> Planned:
        position = self._of_source()
        planned = position.plan(count)
        self._go_to(position)
        return planned

    def _of_source(self) -> StreamIterator[Any]:
        """Returns an iterator of the source at the same position; it must not be closed, since readers are shared."""
        position = self._dataset.source.open(self._context)
        position.load_state_dict(self.state_dict())
        return position

    def _go_to(self, position: StreamIterator[Any]) -> None:
        self.close()
        self.load_state_dict(position.state_dict())

    def state_dict(self) -> State:
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: State) -> None:
        self._epoch, self._position = count_of(state, "epoch"), count_of(state, "position")

    def close(self) -> None:
        if self._samples is not None:
            self._samples.close()  # type: ignore[attr-defined]
            self._samples = None
