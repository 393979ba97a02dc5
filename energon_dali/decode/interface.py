"""Media handles, decoding outcomes, and the interface that all decoders share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from typing_extensions import Self

from energon_dali.cache import FileStoreDecoder, Lazy
from energon_dali.decode.front_ends import FrontEnd, ImageLayout
from energon_dali.decode.geometry import result_size
from energon_dali.decode.images import decode_image
from energon_dali.decode.spec import ImageSpec
from energon_dali.errors import ConfigError
from energon_dali.samples.base import SourceInfo
from energon_dali.samples.transfer import attributes_of

Placement = Literal["worker", "rank"]
Route = Literal[
    "dali-gpu",
    "dali-host",
    "dali-cpu",
    "torchcodec-gpu",
    "torchcodec-cpu",
    "pynvvideocodec",
    "pil",
    "pyav",
    "fallback",
    "failed",
]
"""The decoder that produced a value: DALI's codecs on a GPU; DALI's CPU threads in a GPU pipeline; DALI on the CPU;
torchcodec on a GPU, or on the CPU; PyNvVideoCodec; PIL; PyAV; PIL or PyAV after another decoder failed on the file;
none."""


@dataclass(slots=True, eq=False)
class MediaHandle:
    """An encoded image on its way to the decode stage; its size is known, its pixels are not.

    `Decoder.stage` creates a handle after screening the header. The handle travels through hooks and processes, and
    `Decoder.decode_block` replaces it by pixels. It is a view: `data` may be part of a block shared by many samples.
    """

    name: str
    """Part name, such as "jpg"."""
    data: bytes | bytearray | memoryview
    """The encoded file."""
    format: str
    """Format found in the header: "jpeg", "png", "webp", ... (`ImageHeader.format`)."""
    width: int
    """Width in pixels as stored, before any EXIF rotation."""
    height: int
    """Height in pixels as stored, before any EXIF rotation."""
    spec: ImageSpec
    """What to decode it to; one object shared by all handles of a decoder."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 if there is none."""
    seed: int = 0
    """Seed of this part's random operations, a function of (seed, sample, epoch, part)."""
    source: SourceInfo | None = None
    """Where it came from, for messages."""

    @property
    def layout(self) -> ImageLayout:
        """What the decoder's front end makes of the image: views, grid, number of tokens. Computed from the header.

        Raises:
            ConfigError: The decoder has no front end.
            DecodeError: The front end refuses images of this size, or a crop is larger than the image.
        """
        front_end = self.spec.front_end
        if front_end is None:
            raise ConfigError(
                "This handle's decoder has no front end, so its layout and tokens are unknown. Give the decoder "
                "front_end=FrontEnd.from_processor(...)."
            )
        height, width = result_size(self)
        return front_end.layout(width, height)

    @property
    def num_tokens(self) -> int:
        """Tokens of the image in the text, features and markers, as the processor counts them; from the header.

        Raises:
            ConfigError: The decoder has no front end.
            DecodeError: The front end refuses images of this size.
        """
        return self.layout.num_tokens

    def with_front_end(self, front_end: FrontEnd) -> Self:
        """Returns a copy that becomes what another front end makes of it: other limits, or another number of images.

        For hooks before decoding, which know the whole sample. The data is shared.

        Args:
            front_end: Usually `handle.spec.front_end.with_fields(...)`.

        Raises:
            ConfigError: The decoder has no front end.
            DecodeError: The front end refuses images of this size.
        """
        if self.spec.front_end is None:
            raise ConfigError(
                "This handle's decoder has no front end, so the handle cannot get another. Give the decoder "
                "front_end=FrontEnd.from_processor(...)."
            )
        twin = copy.copy(self)
        twin.spec = _with_front_end(self.spec, front_end)
        twin.layout  # noqa: B018 - raises if the front end refuses the size
        return twin

    def decode(self) -> Any:
        """Returns the pixels, decoded now on the CPU in the calling thread, with all declared operations applied.

        Raises:
            DecodeError: The data cannot be decoded.
        """
        return decode_image(self)

    def _repr_html_(self) -> str:
        from energon_dali.samples.cards import card

        rows = [
            ("format", self.format),
            ("stored size", f"{self.width} x {self.height} pixels"),
            ("file", f"{len(self.data):,} bytes"),
        ]
        if self.orientation != 1:
            rows.append(("EXIF orientation", str(self.orientation)))
        if self.spec.operations:
            rows.append(("operations", ", ".join(map(repr, self.spec.operations))))
        if self.spec.front_end is not None:
            rows.append(("front end", f"{self.spec.front_end.family}, {self.num_tokens:,} tokens"))
        return card("MediaHandle", rows, note=f"{self.name}, encoded")

    def __repr__(self) -> str:
        return f"MediaHandle({self.name}: {self.format} {self.width}x{self.height}, {len(self.data)} bytes)"


@lru_cache(maxsize=64)
def _with_front_end(spec: ImageSpec, front_end: FrontEnd) -> ImageSpec:
    return replace(spec, front_end=front_end)


@dataclass(slots=True, eq=False)
class Decoded:
    """A decoded part, and the route that decoded it."""

    value: Any
    """A torch tensor, numpy array or PIL image, as the spec says."""
    route: Route
    """Decoder that produced it."""
    ready: Any = None
    """torch.cuda.Event after which the value may be used; None if it may be used at once."""


@dataclass(slots=True, eq=False)
class DecodeFailure:
    """A part that no decoder could decode."""

    reason: str
    """What was wrong, for a message."""
    format: str
    """Format, or "" if it is unknown."""
    route: str
    """Decoder that failed last."""
    source: SourceInfo | None = None
    """Where the part came from."""


Outcome = Decoded | DecodeFailure


class Decoder(ABC):
    """Decodes the parts of a sample. `SampleDecoder` and `DaliDecoder` implement it.

    A decoder only holds options: it is cheap to create (also at class level), picklable, and holds no pipeline, device
    or file.
    """

    placement: Placement
    """"worker": workers decode parts as they read them. "rank": media travel encoded to the rank's process."""

    decodes_late = False
    """Whether workers keep media as handles until the hooks before decoding ran, and then decode them themselves. Only
    for placement "worker"."""

    @property
    def finishes_in_worker(self) -> bool:
        """Whether workers call `finish_in_worker` with handles after the hooks before decoding ran. For "rank"."""
        return False

    def finish_in_worker(self, handle: MediaHandle, *, decodes: bool = True) -> MediaHandle:
        """Returns a handle as it travels to the rank: decoded, if the rank would decode it on its few CPU threads.

        Never raises because of bad data, which the rank then reports.

        Args:
            handle: The handle.
            decodes: Whether it may be decoded; otherwise what decides about it is only looked up.
        """
        return handle

    def prepare_workers(self) -> None:  # noqa: B027
        """Looks up, in the rank's process, what workers must not: what a GPU decodes. Called before they start."""

    trusts_pickles = False
    """Whether pickled parts are unpickled, which runs code that the dataset brings."""

    def trusting(self) -> Self:
        """Returns a copy that unpickles pickled parts."""
        twin = copy.copy(self)
        twin.trusts_pickles = True
        return twin

    @abstractmethod
    def decode(self, fname: str, raw: bytes) -> Any:
        """Returns one part decoded according to its file or part name, or the raw bytes if no handler takes it.

        Raises:
            DecodeError: The part cannot be decoded.
        """

    @abstractmethod
    def stage(self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None) -> Any:
        """Returns what the worker makes of a part: a decoded value, or a MediaHandle to be decoded later.

        Raises:
            DecodeError: The part cannot be decoded, or its header was refused.
        """

    @property
    def overrides_decode(self) -> bool:
        """Whether a subclass overrides `decode`, so that a pipeline must call it instead of `stage`."""
        return False

    def decode_part(
        self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None
    ) -> Any:
        """Returns what the worker makes of a part. Pipelines call this; by default it calls `stage`.

        Args:
            name: Part name or file name.
            raw: Content of the part.
            seed: Seed of random operations.
            source: Where it came from, for messages.

        Raises:
            DecodeError: The part cannot be decoded, or its header was refused.
        """
        return self.stage(name, raw, seed=seed, source=source)

    def plain_reader(self, name: str) -> Callable[[bytes], Any] | None:
        """Returns a function that gives what `decode_part` gives for a valid part, from its content alone; None if
        there is none, as for all media. Pipelines call it instead, and `decode_part` where it fails.

        Args:
            name: Part name or file name.
        """
        return None

    def import_libraries(self, placement: Placement, parts: Collection[str] | None = None) -> None:  # noqa: B027
        """Imports what a process otherwise imports when it decodes its first file. By default there is nothing.

        Args:
            placement: The process: a worker, or one that will be forked into workers; or the rank's.
            parts: Names of the parts that will be decoded; None if they are not known.
        """

    @abstractmethod
    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Starts decoding a block of handles and returns a future of one outcome per handle, in order.

        The future never fails because of bad data. The handles' data must stay unchanged until it is done.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Returns the options as plain values."""

    def decode_block(self, handles: Sequence[MediaHandle]) -> list[Outcome]:
        """Decodes a block of handles and returns one outcome per handle, in order."""
        return self.submit_block(handles).result()

    def start_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Calls `submit_block`, or `decode_block` if a subclass overrides it, and returns a future of the outcomes."""
        if type(self).decode_block is Decoder.decode_block:
            return self.submit_block(handles)
        future: Future[list[Outcome]] = Future()
        future.set_result(self.decode_block(handles))
        return future

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the sample (part name to bytes) with all parts decoded. Names that start with "__" pass through.

        Raises:
            DecodeError: A part cannot be decoded; the message names it.
        """
        return {
            name: value
            if name.startswith("__") or not isinstance(value, (bytes, bytearray, memoryview))
            else self.decode(name, bytes(value))
            for name, value in sample.items()
        }


FileStoreDecoder.register(Decoder)  # type: ignore[type-abstract]  # every decoder also decodes files of stores

_HOLDERS = (MediaHandle, dict, list, tuple, Lazy)
"""Types that can contain handles, besides dataclasses."""
_MISSING: Any = object()


def map_handles(value: Any, replace: Callable[[MediaHandle], Any]) -> Any:
    """Returns `value` with every MediaHandle inside it replaced.

    Dataclasses (frozen ones too, with all their attributes), dicts and lists are changed in place, each once. Tuples
    are recreated. A Lazy is fetched, and the fetched value is changed.

    Args:
        value: A sample: a dataclass, dict, list, tuple, or anything else (returned unchanged).
        replace: Returns the replacement of a handle.
    """
    return _mapped(value, replace, set())


# Remembered by type: DALI makes every check against an abstract class, such as Lazy, a call of several microseconds.
@lru_cache(maxsize=1024)
def _is_holder(kind: Any) -> bool:
    return issubclass(kind, _HOLDERS) or hasattr(kind, "__dataclass_fields__")


@lru_cache(maxsize=1024)
def _is_lazy(kind: Any) -> bool:
    return issubclass(kind, Lazy)


def _may_hold(value: Any) -> bool:
    return _is_holder(value.__class__)


def _mapped(value: Any, replace: Callable[[MediaHandle], Any], seen: set[int]) -> Any:
    """Implements `map_handles`. `seen` holds the ids of objects changed in place, which may contain themselves."""
    if isinstance(value, MediaHandle):
        return replace(value)
    if isinstance(value, tuple):
        if not any(map(_may_hold, value)):
            return value
        changed = [_mapped(inner, replace, seen) for inner in value]
        if all(new is old for new, old in zip(changed, value, strict=True)):
            return value
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if not _may_hold(value) or id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, dict):
        for name, inner in value.items():
            if _may_hold(inner):
                value[name] = _mapped(inner, replace, seen)
    elif isinstance(value, list):
        value[:] = [_mapped(inner, replace, seen) for inner in value]
    elif _is_lazy(value.__class__):
        value.replace(lambda data: _mapped(data, replace, seen))
    else:
        _map_attributes(value, replace, seen)
    return value


def _map_attributes(value: Any, replace: Callable[[MediaHandle], Any], seen: set[int]) -> None:
    """Replaces the handles in the fields and further attributes of a dataclass instance."""
    kind = type(value)
    further = getattr(value, "__dict__", None)
    for name in {**kind.__dataclass_fields__, **further} if further else kind.__dataclass_fields__:
        inner = getattr(value, name, _MISSING)
        if not _is_holder(inner.__class__) or (isinstance(inner, tuple) and name.startswith("__")):
            continue
        changed = replace(inner) if isinstance(inner, MediaHandle) else _mapped(inner, replace, seen)
        if changed is not inner:
            # A frozen dataclass refuses `setattr`. This object comes from a hook or a worker: nobody else uses it.
            (object.__setattr__ if kind.__dataclass_params__.frozen else setattr)(value, name, changed)


def check_media(value: Any) -> None:
    """Decodes the whole of every video and audio file in a sample, and keeps nothing.

    Args:
        value: A sample, or a part of one: dataclasses, dicts, lists and tuples are searched for `AVDecoder`.

    Raises:
        DecodeError: A file cannot be opened, or part of it cannot be decoded.
    """
    from energon_dali.av import AVDecoder

    if isinstance(value, AVDecoder):
        # Closed at once: otherwise the decoders of a whole block would hold their frames at the same time.
        with value:
            if value.has_video_stream():
                value.video.check()
            if value.has_audio_stream():
                value.audio.check()
    elif isinstance(value, dict):
        for inner in value.values():
            check_media(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            check_media(inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for inner in attributes_of(value).values():
            check_media(inner)
