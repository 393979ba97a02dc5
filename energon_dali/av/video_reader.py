"""Decodes chosen frames of a video: each needed packet once, and only wanted frames are converted to RGB."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energon_dali.av.colour import ColourFacts, DecodeScale, FrameConverter, colours_of_frame
from energon_dali.av.container import ROUTE, MediaFile
from energon_dali.av.frame_index import FrameIndex, Int64s
from energon_dali.av.packet_decoder import PacketDecoder, find_ends, find_runs
from energon_dali.av.sparse_media import SparseMedia
from energon_dali.av.stream_facts import StreamFacts
from energon_dali.av.video_scan import Damaged, scan_frames
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.worker_config import IdleCores

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Frames = npt.NDArray[np.uint8]
MOST_DECODERS = 4
"""Most decoders of a video at the same time. Each holds up to 16 frames, which are 3 MB at 1080p."""
FrameSize = tuple[int, int] | Callable[[int, int], tuple[int, int]] | None


class VideoReader:
    """The first video stream of a file, frame by frame.

    Args:
        file: The file; not closed by this.
        damaged: What happens if packets cannot be decoded. "error": asking for such a frame raises. "partial": the
            video consists of the frames that can be decoded; finding them costs a full decode.
        decode_scale: How far frames that become smaller may differ from an exact conversion (`FrameConverter`).

    Raises:
        ConfigError: `damaged` is unknown.
    """

    def __init__(self, file: MediaFile, *, damaged: Damaged = "error", decode_scale: DecodeScale = "exact") -> None:
        if damaged not in ("error", "partial"):
            raise ConfigError(f'damaged={damaged!r} is unknown. Choose "error" or "partial".')
        self.file = file
        self.damaged: Damaged = damaged
        self.decode_scale: DecodeScale = decode_scale

    @property
    def facts(self) -> StreamFacts:
        """Facts about the stream.

        Raises:
            DecodeError: The file cannot be opened, or has no video stream that can be decoded, or it is encrypted.
        """
        facts = self.file.decodable_stream("video")
        if not facts.width or not facts.height:  # an animated WebP, which FFmpeg lists and does not decode
            raise DecodeError("Its video stream has no size, so FFmpeg cannot decode it", facts.codec, ROUTE)
        return facts

    @property
    def index(self) -> FrameIndex:
        """The frames that the video shows, determined once per file.

        Raises:
            DecodeError: The file cannot be read.
        """
        key = ("video_index", self.damaged)
        return self.file.found(key, lambda: scan_frames(self.file, self.facts, damaged=self.damaged))

    @property
    def width(self) -> int:
        """Width in pixels as stored, before any rotation: according to the container, until frames were read."""
        return self._stored_size[0]

    @property
    def height(self) -> int:
        """Height in pixels as stored, before any rotation: according to the container, until frames were read."""
        return self._stored_size[1]

    @property
    def colours(self) -> ColourFacts:
        """The colours of the first frame as its decoder reports them; containers may say otherwise.

        Decodes the first frame, once per file.

        Raises:
            DecodeError: No frame can be decoded, or its colours cannot be converted to RGB.
        """
        return self.file.found("colours", self._find_colours)

    def _find_colours(self) -> ColourFacts:
        position = self.facts.position
        with self.file.opened():
            container = self.file.rewind()
            stream: Any = container.streams[position]
            self.file.select(stream)
            frame = next(container.decode(stream), None)
        if frame is None:
            raise DecodeError("No frame of the video can be decoded", self.facts.codec, ROUTE)
        self.file.cache.setdefault("rotation", _rotation_of(frame))
        self.file.cache["matrix"] = int(frame.colorspace)
        return colours_of_frame(frame)

    @property
    def declared_matrix(self) -> int | None:
        """AVColorSpace of the first frame as its decoder reports it, 2 if it reports none; None before `colours`."""
        found: int | None = self.file.cache.get("matrix")
        return found

    @property
    def rotation(self) -> int:
        """Degrees by which frames are rotated counter-clockwise to be upright: 0, 90, 180 or 270.

        Decodes the first frame, once per file.

        Raises:
            DecodeError: The first frame cannot be decoded.
        """
        if "rotation" not in self.file.cache:
            with self.file.used():
                for _, frame in self._decode(np.zeros(1, np.int64)):
                    self.file.cache["rotation"] = _rotation_of(frame)
        return int(self.file.cache["rotation"])

    def read(
        self,
        frames: npt.ArrayLike | Sequence[int],
        size: FrameSize = None,
        *,
        upright: bool = False,
        planar: bool = False,
    ) -> Frames:
        """Returns frames in RGB: uint8 [n, height, width, 3], a new array.

        Args:
            frames: Frame numbers, int [n], in any order, repetitions allowed.
            size: (width, height) in pixels, or a function that returns it for the width and height of the frames; None
                keeps those of the video's first frame, which containers may misstate.
            upright: Rotates the frames as the file says. A quarter turn swaps width and height: `size` is the size
                after rotation, and the result is a view with other strides.
            planar: Stores each channel of a frame on its own: the result is a view of [n, 3, height, width].

        Raises:
            ConfigError: A frame does not exist, or the size is not positive.
            DecodeError: A frame cannot be decoded, or the result would be beyond the limits.
        """
        index = self.index
        wanted = np.asarray(frames, dtype=np.int64).reshape(-1)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(index):
            raise ConfigError(
                f"Frames {int(wanted.min())} to {int(wanted.max())} were asked for. The video shows {len(index)} "
                f"frames. Give numbers from 0 to {len(index) - 1}."
            )
        turns = self.rotation // 90 if upright else 0
        images = None
        while images is None:
            images = self._convert(wanted, *self._target_size(size, turns), planar)
        return np.rot90(images, turns, axes=(1, 2)) if turns else images

    def packets_of(self, frames: npt.ArrayLike | Sequence[int]) -> list[tuple[int, int]]:
        """Returns the packets that `read` decodes for frames, as runs (first, last) in increasing order.

        Args:
            frames: Frame numbers, int [n].

        Raises:
            DecodeError: The file cannot be read.
        """
        wanted = np.unique(np.asarray(frames, dtype=np.int64))
        return find_runs(self.index.starts[wanted], find_ends(self.index.positions[wanted], self.index))

    def check(self) -> None:
        """Decodes every frame and keeps none: takes as long as a full decode, and only the memory of a decoder.

        Raises:
            DecodeError: A frame cannot be decoded.
        """
        if self.index.proven:  # everything was decoded to list the frames
            return
        with self.file.used():
            for _ in self._decode(np.arange(len(self.index))):
                pass

    @property
    def _stored_size(self) -> tuple[int, int]:
        facts = self.facts
        size: tuple[int, int] = self.file.cache.get("size", (facts.width, facts.height))
        return size

    def _target_size(self, size: FrameSize, turns: int) -> tuple[int, int]:
        """Returns the (width, height) that frames are converted to before rotation."""
        stored = self._stored_size
        if size is None:
            return stored
        if callable(size):
            size = size(*stored[::-1]) if turns % 2 else size(*stored)
        width, height = _check_sides(size)
        return (height, width) if turns % 2 else (width, height)

    def _convert(self, wanted: Int64s, width: int, height: int, planar: bool) -> Frames | None:
        """Returns frames of a size, [n, height, width, 3]; None if the container misstated the size of the frames."""
        self._check_size(len(wanted), width, height)
        images: Frames
        if planar:
            images = np.empty((len(wanted), 3, height, width), np.uint8).transpose(0, 2, 3, 1)
        else:
            images = np.empty((len(wanted), height, width, 3), np.uint8)
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]

        def fill(numbers: Int64s, threads: int | None = None) -> bool:
            """Writes frames into their rows; returns False if the container misstated their size."""
            converter = FrameConverter(width, height, decode_scale=self.decode_scale)
            for number, frame in self._decode(numbers, threads):
                if "size" not in self.file.cache:
                    if (frame.width, frame.height) != self._stored_size:
                        if number:
                            _, frame = next(self._decode(np.zeros(1, np.int64)))
                        self.file.cache["size"] = frame.width, frame.height
                        return False
                    self.file.cache["size"] = frame.width, frame.height
                first, stop = np.searchsorted(ordered, (number, number + 1))
                rows = order[first:stop]
                converter.write(frame, images[rows[0]])
                for row in rows[1:]:
                    images[row] = images[rows[0]]
            return True

        with self.file.used():
            numbers = np.unique(wanted)
            parts = self._divide(numbers)
            if len(parts) == 1:
                return images if fill(numbers) else None
            threads = max(1, self.file.decoding_threads(self.facts) // len(parts))
            with ThreadPoolExecutor(len(parts), "energon-dali-frames") as pool:
                list(pool.map(lambda part: fill(part, threads), parts))
        return images

    def _divide(self, numbers: Int64s) -> list[Int64s]:
        """Returns frames in parts that threads decode at the same time, each with a decoder of its own.

        Decoders wait for each other less than the threads of one decoder do, which drains at the end of each group of
        pictures. Only packets in memory are decoded like this: a demuxer reads one position of the file.

        Args:
            numbers: Frame numbers, ascending and without repetition; int64 [n].
        """
        facts, index, media = self.facts, self.index, self.file.source
        threads = self.file.decoding_threads(facts)
        if self.file.threads is None and not facts.is_interlaced_mpeg4:
            threads = max(threads, IdleCores.count)
        if threads < 2 or "size" not in self.file.cache or not isinstance(media, SparseMedia):
            return [numbers]
        indexed = self.file.indexed(facts, index)
        runs = find_runs(index.starts[numbers], find_ends(index.positions[numbers], index))
        if indexed is None or len(runs) < 2 or any(media.find(*place) is None for place in indexed[1].places(runs)):
            return [numbers]
        firsts, lasts = np.array(runs, np.int64).T
        packets = np.cumsum(lasts - firsts + 1)
        count = min(threads, len(runs), MOST_DECODERS)
        part_of_run = (packets - 1) * count // packets[-1]
        part = part_of_run[np.searchsorted(firsts, index.starts[numbers], side="right") - 1]
        return [numbers[part == number] for number in np.unique(part)]

    def _check_size(self, count: int, width: int, height: int) -> None:
        limits = self.file.limits
        pixels = width * height
        if count > limits.max_frames or count * pixels * 3 > limits.max_bytes or pixels > limits.max_pixels:
            raise DecodeError(
                f"{count} frames of {width} x {height} pixels are beyond max_frames={limits.max_frames}, "
                f"max_pixels={limits.max_pixels} or max_bytes={limits.max_bytes} of AVLimits. "
                "Ask for fewer or smaller ones, or raise the limit",
                self.facts.codec,
                ROUTE,
            )

    def _decode(self, wanted: Int64s, threads: int | None = None) -> Iterator[tuple[int, VideoFrame]]:
        """Yields (number, frame) of the wanted frames, each once, in the order in which they are decoded.

        If listed frames are missing, decoding is repeated from earlier key frames, and finally from the start.

        Args:
            wanted: Frame numbers, without repetition; int64 [n].
            threads: Threads of the decoder; None for all that the file may have.

        Raises:
            DecodeError: A frame is missing.
        """
        index = self.index
        feed = PacketDecoder(self.file, self.facts, index, tolerant=self.damaged == "partial", threads=threads)
        starts = index.starts[wanted]
        missing = wanted
        for attempt in range(3):
            got: set[int] = set()
            for number, frame in feed.decode(missing, starts, to_end=attempt == 2):
                got.add(number)
                yield number, frame
            keep = np.array([number not in got for number in missing.tolist()], bool)
            missing = missing[keep]
            if not len(missing):
                return
            starts = _earlier(starts[keep], index) if attempt == 0 else np.zeros(len(missing), np.int64)
        raise DecodeError(
            f"Frame {int(missing[0])} of {len(index)} cannot be decoded, and {len(missing) - 1} others. The file is "
            'damaged; damaged="partial" returns what can be decoded',
            self.facts.codec,
            ROUTE,
        )


def _rotation_of(frame: VideoFrame) -> int:
    """Returns the degrees by which a frame is rotated counter-clockwise to be upright, to a quarter turn."""
    return round(frame.rotation / 90) % 4 * 90


def _check_sides(size: Any) -> tuple[int, int]:
    """Returns (width, height) as whole numbers.

    Raises:
        ConfigError: They are not two whole numbers of at least 1.
    """
    try:
        width, height = (operator.index(side) for side in size)
    except (TypeError, ValueError):
        width = height = 0
    if width < 1 or height < 1:
        raise ConfigError(
            f"The size {size!r} was given. It is (width, height) in pixels, two whole numbers of at least 1."
        )
    return width, height


def _earlier(starts: Int64s, index: FrameIndex) -> Int64s:
    """Returns the key packets before those given, int64 [n]."""
    keys: Any = np.flatnonzero(index.packets.is_key)
    at = np.searchsorted(keys, starts, side="left") - 1
    return np.where(at >= 0, keys[np.maximum(at, 0)], 0) if len(keys) else np.zeros(len(starts), np.int64)
