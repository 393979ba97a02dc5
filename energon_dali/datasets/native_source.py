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
from energon_dali.datasets.source import NAME, RawFailure, ReadFailure, SourceDataset
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.worker_border import count_routes, decode_elements, handles_of
from energon_dali.decode import DaliDecoder, Decoded, DecodeFailure
from energon_dali.errors import ConfigError, DatasetError, DatasetFormatError, DecodeError, EmptyDatasetError
from energon_dali.plan.plan import MOST_ROWS
from energon_dali.plan.source import SourcePlan
from energon_dali.samples.base import Key, set_restore_key
from energon_dali.shards import RawSample, ShardReader

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


class NativeSourceDataset(SavableDataset[Any]):
    """Yields the samples of a source with their image decoded, which DALI reads from the shards in the planned order.

    DALI must not read a sample with no image, with several, or with one whose header was not eligible when the dataset
    was prepared. Such a sample is read here and decoded by the block engine.

    Args:
        dataset: The plan of one source, its reader and its loader of samples.
        decoder: Decodes on its device.
        batch_size: Samples per run of the pipeline.

    Raises:
        ConfigError: The dataset or its order does not suit DALI's reader; the message says what to change.
    """

    plan_obstacle = None
    runs_in_rank = True

    def __init__(self, dataset: SourceDataset, decoder: DaliDecoder, *, batch_size: int) -> None:
        super().__init__(worker_config=dataset.worker_config)
        (source,) = dataset.sources
        if not isinstance(source.reader, ShardReader):
            raise ConfigError(
                'feed="native" reads folders of tar shards only. Use feed="block", which takes every dataset.'
            )
        self.dataset = dataset
        self.source = source
        self.reader: ShardReader = source.reader
        self.decoder = decoder
        self.batch_size = batch_size
        self._check()

    def _check(self) -> None:
        folder, plan = self.reader.folder, self.dataset.plan
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
        first_shard = self.source.plan.base.shard[:1].tolist()
        checked = all(len(folder.index.shard(shard).formats) > 1 for shard in first_shard)
        if folder.index.source != "extents" or not checked:
            raise ConfigError(
                f'feed="native" needs the header check that `energon-dali prepare` writes, and {folder.path} has '
                f'none. Run `energon-dali prepare {shlex.quote(str(folder.path))}`, or use feed="block".'
            )
        if not isinstance(plan, SourcePlan):
            raise ConfigError(
                f'feed="native" follows whole passes over {folder.path}, and blend_epochized repeats or divides '
                'its samples. Use feed="block".'
            )
        _check_runs(plan)

    @property
    def children(self) -> tuple[SavableDataset[Any], ...]:
        return ()

    def describe(self) -> str:
        return f"NativeSourceDataset({self.source.name}, repeat={self.dataset.plan.is_endless})"

    def config(self) -> dict[str, Any]:
        """Returns the config of the source, since both feeds yield the same samples in the same order."""
        return self.dataset.config()

    def at_position(self, number: int) -> NativeSourceDataset:
        twin = copy.copy(self)
        twin.dataset = self.dataset.at_position(number)
        (twin.source,) = twin.dataset.sources
        return twin

    def len_stream(self, stream: int) -> int:
        return self.dataset.len_stream(stream)

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _NativeIterator(self, context)

    def restore_sample(self, restore_key: Key) -> Any:
        """Returns the sample of a key, read again and decoded by the block engine.

        Raises:
            DecodeError: It cannot be decoded.
        """
        return decode_elements(self.decoder, [self.dataset.restore_sample(restore_key)], strict=True)[0]

    def wanted(self, name: str) -> bool:
        """Returns whether a part is wanted."""
        return self.reader.part_filter is None or bool(self.reader.part_filter(name))


def _check_runs(order: SourcePlan) -> None:
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
        self._plan = dataset.dataset.plan
        self._load_sample = dataset.source.load.counting(context.metrics)
        tolerance = dataset.dataset.failure_tolerance
        self._read_policy, self._load_policy, self._decode_policy = (
            FailurePolicy(stage, tolerance, context, dataset.worker_config) for stage in ("read", "load", "decode")
        )
        self._position = dataset.dataset.open(context)
        self._row = 0
        """Next row of the plan; `_position` follows when it is asked for."""
        self._samples: Iterator[tuple[_Planned, RawSample | DatasetError | DecodeFailure]] | None = None

    def __next__(self) -> Any:
        while True:
            if self._samples is None:
                self._samples = self._read_rows()
            planned, raw = next(self._samples, (None, None))
            if planned is None:
                self._samples = None
                continue
            self._row += 1
            sample = self._load(planned, raw)
            if sample is not None:
                return sample

    def _read_rows(self) -> Iterator[tuple[_Planned, Any]]:
        """Returns an iterator over the next rows; raises StopIteration at the end of an epoch that is not repeated."""
        source, stream = self._dataset.source, self._context.stream
        self._follow()
        end = min(self._end(), self._row + ROWS_PER_READER)
        if end == self._row:
            self._position.skip(1)
            raise StopIteration
        if not self._plan.num_samples:
            raise EmptyDatasetError(
                f"{source.name} has no sample to repeat: its split is empty. Choose another split_part."
            )
        rows = self._plan.rows(self._row, end, stream)
        locations = list(zip(rows.shards.tolist(), rows.indices.tolist(), strict=True))
        numbers = np.fromiter((self._dataset.reader.index_of(*location) for location in locations), np.int64)
        seeds = source.load.seeds(rows.passes, numbers)
        planner = RowPlanner(self._dataset.reader.folder.index, self._dataset.wanted, self._dataset.decoder.spec)
        plan = [
            _Planned(shard, sample, epoch, seed, planner.add(shard, sample, seed))
            for (shard, sample), epoch, seed in zip(locations, rows.passes.tolist(), seeds, strict=True)
        ]
        return self._run(plan, planner)

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
                count_routes(self._context.metrics, [outcome])
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
            sample = self._load_sample(raw, planned.seed)
            # DALI does not read videos here: clips are still handles.
            if planned.parts is None or handles_of(sample):
                (sample,) = decode_elements(self._dataset.decoder, [sample], strict=True)
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

    def _end(self) -> int:
        """Returns the row at which the epoch ends."""
        if self._plan.is_endless:
            return MOST_ROWS
        return self._plan.epoch_start(self._position.state_dict()["epoch"] + 1, self._context.stream)

    def _follow(self) -> None:
        """Moves `_position` to the next row."""
        self._position.load_state_dict({**self._position.state_dict(), "row": self._row})

    def skip(self, count: int, planned: list[Planned] | None = None) -> int:
        self._follow()
        skipped = self._position.skip(count, planned)
        self.load_state_dict(self._position.state_dict())
        return skipped

    def state_dict(self) -> State:
        self._follow()
        return self._position.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.close()
        self._position.load_state_dict(state)
        self._row = self._position.state_dict()["row"]

    def close(self) -> None:
        if self._samples is not None:
            self._samples.close()  # type: ignore[attr-defined]
            self._samples = None
