"""feed="native": DALI reads tar shards itself, in exactly the order it is given, and decodes with the same graph.

Only for images that passed `is_eligible_image`, as the header check of `prepare` does: a file that DALI's parser
refuses can end the process here, and nothing looks at the bytes before DALI does.

Its index files say where it finds each sample, so they can follow any order: subsets, permutations and repetitions.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from energon_dali.decode.dali.decoder import DaliDecoder
from energon_dali.decode.dali.images.engine import set_geometry_inputs, take_results
from energon_dali.decode.dali.images.graph import ImageBatch, ImageGraph, define_graph, define_inputs
from energon_dali.decode.dali.runtime.blocks import consumer_stream
from energon_dali.decode.dali.runtime.device import current_device, load_dali
from energon_dali.decode.dali.runtime.failure import raise_if_device_failed
from energon_dali.decode.dali.runtime.pipeline import Pipeline, build_pipeline
from energon_dali.decode.geometry import handle_geometry
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome, Route
from energon_dali.errors import ConfigError, DecodeError, ShardError, StorageError, StoreUnavailableError
from energon_dali.shards import StoragePath
from energon_dali.shards.storage.atomic_file import writing

_LOG = logging.getLogger(__name__)
_RUNS_IN_FLIGHT = 2
"""Runs given to DALI at a time."""
_TAR_BLOCK_BYTES = 512


@dataclass(slots=True, eq=False)
class ReaderBatch:
    """Consecutive rows, read and decoded."""

    first: int
    """Number of the first row."""
    images: list[Outcome]
    """One outcome per row."""
    parts: dict[str, list[bytes | None]]
    """Bytes of every other component, one entry per row; None where the row has none."""


class DaliReader:
    """Iterates over the batches of an order that DALI reads itself. For one thread at a time.

    Close it with `close`, or use it as a context manager.

    Args:
        decoder: Its spec, device and threads are used; DALI must be installed.
        shards: Paths of uncompressed tar files, or s3:// URLs (whose sizes are not checked).
        rows: The samples to read, in order. Each change of the shard starts a new index file: DALI takes about 36 us
            per file and 3 us per row to build the pipeline, and holds the interpreter lock.
        components: Names of the components, in the order of each row's extents.
        image: The component that is the image; every row must have it.
        batch_size: Rows per batch; the last batch has the remaining rows.

    Raises:
        ConfigError: The image is not among the components, a row does not fit them, or an offset is not one of a tar.
        ShardError: An extent is outside its shard, or the shard is gone.
        DeviceError: The decoder's device is not there.
        DecodeError: A declared crop is larger than an image.
    """

    def __init__(
        self,
        decoder: DaliDecoder,
        shards: Sequence[str | os.PathLike[str]],
        rows: Sequence[ReaderRow],
        *,
        components: Sequence[str],
        image: str,
        batch_size: int,
    ) -> None:
        if image not in components or batch_size < 1:
            raise ConfigError(
                f"image={image!r} with components={list(components)} and batch_size={batch_size} is invalid. The image "
                "must be one of the components, and batch_size at least 1."
            )
        self._decoder = decoder
        self._device = decoder.device
        self._graph = ImageGraph.from_spec(decoder.spec, self._device.kind)
        self._shards = [os.fspath(shard) for shard in shards]
        self._rows = rows
        self._components = list(components)
        self._image = self._components.index(image)
        self._others = [number for number in range(len(components)) if number != self._image]
        self._batch_size = batch_size
        self._folder = TemporaryDirectory(prefix="energon-dali-index-")
        self._next_row = 0  # of the next run to be scheduled
        self._flying: deque[tuple[int, int, ImageBatch]] = deque()
        self._pipeline: Pipeline | None = None

    def __iter__(self) -> Iterator[ReaderBatch]:
        return self

    def __next__(self) -> ReaderBatch:
        """Returns the next batch. One that DALI cannot read or decode is read again and decoded by the block engine.

        Raises:
            StopIteration: All rows were delivered.
            ShardError: A shard became shorter or vanished.
            StoreUnavailableError: The store returned only errors for too long.
            DeviceFailedError: The device failed.
        """
        while self._next_row < len(self._rows) and len(self._flying) < _RUNS_IN_FLIGHT:
            self._schedule()
        if not self._flying:
            self.close()
            raise StopIteration
        first, last, batch = self._flying[0]
        assert self._pipeline is not None
        try:
            stream = consumer_stream(self._device)
            with current_device(self._device):  # the default CUDA stream is that of the current device
                outputs = self._pipeline.outputs(cuda_stream=stream)
            self._check_order(outputs[-1], first)
        except Exception as error:
            return self._recover(error)
        self._flying.popleft()
        options = self._decoder.engine_options
        threads, copies_to = options.threads_on(self._device), options.tuning.copies_to(self._device)
        values = take_results(outputs[0], self._graph, batch, threads, stream, copies_to)[: last - first]
        route: Route = "dali-gpu" if self._device.kind == "gpu" else "dali-cpu"  # only DALI has seen the formats
        images: list[Outcome] = [Decoded(value, route) for value in values]
        return ReaderBatch(first, images, self._bytes_of_parts(outputs[1:-1], first, last))

    def close(self) -> None:
        """Releases the shards, the pipeline and the index files."""
        self._pipeline = None  # before the arrays that its runs still read
        self._flying.clear()
        self._next_row = len(self._rows)
        self._folder.cleanup()

    def __enter__(self) -> DaliReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- running ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if self._pipeline is None:
            self._pipeline = self._build(self._next_row)
        first = self._next_row
        last = min(first + self._batch_size, len(self._rows))
        batch = self._batch_of(first, last)
        set_geometry_inputs(self._pipeline, self._graph, batch)
        self._pipeline.schedule_run()
        self._flying.append((first, last, batch))
        self._next_row = last

    def _batch_of(self, first: int, last: int) -> ImageBatch:
        """Returns the geometries of some rows, padded to a full batch with the last one, as the reader pads samples."""
        spec = self._decoder.spec
        batch = ImageBatch([], [])
        for row in self._rows[first:last]:
            handle = MediaHandle("", b"", "", row.width, row.height, spec, row.orientation, row.seed)
            batch.handles.append(handle)
            batch.geometries.append(handle_geometry(handle))
        missing = self._batch_size - (last - first)
        batch.handles.extend(batch.handles[-1:] * missing)
        batch.geometries.extend(batch.geometries[-1:] * missing)
        return batch

    def _build(self, first_row: int) -> Pipeline:
        """Returns a pipeline over the rows that start at `first_row`."""
        paths, indices = write_index_files(
            self._folder.name, self._shards, self._rows, len(self._components), self._image, first_row
        )
        options = self._decoder.engine_options.on(self._device, batch_size=self._batch_size)

        def define() -> tuple[Any, ...]:
            fn = load_dali().fn
            parts = fn.readers.webdataset(
                paths=paths,
                index_paths=indices,
                ext=[f"c{number}" for number in range(len(self._components))],
                missing_component_behavior="empty",
                dont_use_mmap=True,  # with mmap a shard that shrank ends the process (SIGSEGV)
                random_shuffle=False,
                pad_last_batch=True,
            )
            parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
            encoded = parts.pop(self._image)
            source_info = fn.get_property(encoded, key="source_info")
            return define_graph(encoded, define_inputs(self._graph), self._graph, options), *parts, source_info

        return build_pipeline(options, define)

    def _check_order(self, source_infos: Any, first: int) -> None:
        """Raises RuntimeError unless the batch begins with the right row: each index line has its row's number."""
        found = bytes(np.asarray(source_infos[0])).rpartition(b":")[2]
        if found != b"%d" % first:
            raise RuntimeError(f"encountered: DALI's reader returned row {found!r} instead of {first}")

    def _bytes_of_parts(self, outputs: Sequence[Any], first: int, last: int) -> dict[str, list[bytes | None]]:
        parts: dict[str, list[bytes | None]] = {}
        for number, images in zip(self._others, outputs, strict=True):
            present = [row.extents[number] is not None for row in self._rows[first:last]]
            parts[self._components[number]] = [
                np.asarray(images[i]).tobytes() if there else None for i, there in enumerate(present)
            ]
        return parts

    def _recover(self, error: BaseException) -> ReaderBatch:
        """Reads the oldest batch in flight again and decodes it with the block engine; the next gets a new pipeline."""
        raise_if_device_failed(error, self._device)
        first, last, _ = self._flying[0]
        _LOG.debug("Rows %d to %d are read again: %s", first, last, error)
        self._pipeline = None
        self._flying.clear()
        self._next_row = last
        parts: dict[str, list[bytes | None]] = {self._components[number]: [] for number in self._others}
        outcomes: list[Outcome | None] = []
        handles: list[MediaHandle] = []
        for row in self._rows[first:last]:
            contents = [None if extent is None else self._read(row.shard, *extent) for extent in row.extents]
            for number in self._others:
                parts[self._components[number]].append(contents[number])
            try:
                raw = contents[self._image] or b""
                handles.append(self._decoder.make_handle(self._components[self._image], raw, seed=row.seed))
                outcomes.append(None)
            except DecodeError as refused:
                outcomes.append(DecodeFailure(refused.reason, refused.format, refused.route))
        decoded = iter(self._decoder.decode_block(handles))
        return ReaderBatch(first, [next(decoded) if known is None else known for known in outcomes], parts)

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        path = self._shards[shard]
        try:
            reader = StoragePath.of(path).open()
            try:
                content = reader.read_at(offset, size)
            finally:
                reader.close()
        except StoreUnavailableError:
            raise
        except (OSError, StorageError) as error:
            raise ShardError(f"Shard {path} cannot be read: {error}. Prepare the dataset again.", path) from error
        if len(content) != size:
            raise ShardError(
                f"Shard {path} shrank since it was indexed: it ends before byte {offset + size}. Prepare the dataset "
                "again.",
                path,
            )
        return content


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """Where DALI's reader finds one sample of an order."""

    shard: int
    """Index of the shard among the reader's shards."""
    extents: tuple[tuple[int, int] | None, ...]
    """(offset, size) in bytes of each component's content; None where the sample has none."""
    width: int = 0
    """Width of the image in pixels as stored; needed if operations are declared."""
    height: int = 0
    """Height of the image in pixels as stored; needed if operations are declared."""
    orientation: int = 1
    """EXIF orientation, 1 to 8."""
    seed: int = 0
    """Seed of the image's random operations."""


def write_index_files(
    folder: str | os.PathLike[str],
    shards: Sequence[str],
    rows: Sequence[ReaderRow],
    num_components: int,
    image: int,
    first_row: int = 0,
) -> tuple[list[str], list[str]]:
    """Writes one index file per run of rows in the same shard; returns (path of the shard, path of the index) per run.

    Each line has the number of its row in place of the file name, which must not contain spaces. Components have the
    suffixes "c0", "c1", ...

    Args:
        folder: Where to write.
        shards: Paths or s3:// URLs of the shards; the sizes of local ones are checked first.
        rows: The order.
        num_components: Number of extents that every row must have.
        image: Index of the component that every row must have.
        first_row: Rows before this one are left out.

    Raises:
        ConfigError: A row has another number of extents, no image, or an offset that is not a multiple of 512.
        ShardError: An extent ends after the end of its shard (which would end the process in DALI), or a shard is gone.
        StorageError: An index cannot be written.
    """
    sizes = [_size_of(shard) for shard in shards]
    paths: list[str] = []
    indices: list[str] = []
    lines: list[str] = []
    for number in range(first_row, len(rows)):
        row = rows[number]
        _check_row(row, num_components, image, shards[row.shard], sizes[row.shard])
        lines.append(
            " ".join(
                f"c{i} {extent[0]} {extent[1]} {number}" for i, extent in enumerate(row.extents) if extent is not None
            )
        )
        if number + 1 == len(rows) or rows[number + 1].shard != row.shard:
            index = Path(folder) / f"{first_row}-{len(indices)}.idx"
            with writing(index):
                index.write_text(f"v1.2 {len(lines)}\n" + "\n".join(lines) + "\n")
            paths.append(shards[row.shard])
            indices.append(str(index))
            lines = []
    return paths, indices


def _size_of(shard: str) -> int | None:
    if "://" in shard:
        return None
    try:
        return os.stat(shard).st_size
    except OSError as error:
        raise ShardError(f"Shard {shard} cannot be read: {error}. Prepare the dataset again.", shard) from error


def _check_row(row: ReaderRow, num_components: int, image: int, shard: str, shard_size: int | None) -> None:
    if len(row.extents) != num_components or row.extents[image] is None:
        raise ConfigError(
            f"{row} cannot be read: it needs {num_components} extents, and that of the image (number {image}) must not "
            "be None. Leave samples without an image out of the rows."
        )
    for extent in row.extents:
        if extent is None:
            continue
        offset, size = extent
        if offset % _TAR_BLOCK_BYTES or offset < 0 or size < 0:
            raise ConfigError(
                f"The extent {extent} in {shard} is not a member of a tar file: contents start at multiples of 512 "
                "bytes. Give the offset of the content as the index has it."
            )
        if shard_size is not None and offset + size > shard_size:
            raise ShardError(
                f"Shard {shard} has {shard_size} bytes, and a part is expected up to byte {offset + size}. It shrank "
                "or changed since it was indexed: prepare the dataset again.",
                shard,
            )
