"""What a decoder takes and gives: media handles, outcomes, and the interface that all decoders share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.cache import FileStoreDecoder, Lazy
from energon_dali.decode.pil import decode_image

if TYPE_CHECKING:
    from energon_dali.decode.spec import ImageSpec
    from energon_dali.samples import SourceInfo

Placement = Literal["worker", "rank"]
Route = Literal["dali-gpu", "dali-host", "dali-cpu", "pil", "pyav", "fallback", "failed"]
"""Which decoder made a value: DALI's codecs on a GPU; DALI's CPU threads in a GPU's pipeline; DALI on the CPU; PIL;
PyAV; one of the last two, for a file that DALI gave up; none."""


@dataclass(slots=True, eq=False)
class MediaHandle:
    """An encoded image on its way to the decode stage; its size is known, its pixels are not.

    A handle is made by `Decoder.stage` after the header was screened, travels through hooks and processes, and is
    replaced by pixels in `Decoder.decode_block`. It is a view: `data` may lie in a block shared by many samples.
    """

    name: str
    """Part name, such as "jpg"."""
    data: bytes | bytearray | memoryview
    """The encoded file."""
    format: str
    """Format found in the header: "jpeg", "png", "webp", ... (`screen.ImageHeader.format`)."""
    width: int
    """Width in pixels as stored, before any EXIF rotation."""
    height: int
    """Height in pixels as stored, before any EXIF rotation."""
    spec: ImageSpec
    """What to make of it; one shared object for all handles of a decoder."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 where there is none."""
    seed: int = 0
    """Seed of this part's random operations, a function of (seed, sample, epoch, part)."""
    source: SourceInfo | None = None
    """Where it came from, for messages."""

    def decode(self) -> Any:
        """Returns the pixels at once, decoded on the CPU in the calling thread, with all declared operations.

        Raises:
            DecodeError: The data cannot be decoded.
        """
        return decode_image(self)

    def __repr__(self) -> str:
        return f"MediaHandle({self.name}: {self.format} {self.width}x{self.height}, {len(self.data)} bytes)"


@dataclass(slots=True, eq=False)
class Decoded:
    """A part that was decoded, and by which route."""

    value: Any
    """A torch tensor, numpy array or PIL image, as the spec says."""
    route: Route
    """Which decoder made it."""
    ready: Any = None
    """torch.cuda.Event after which the value may be used; None if nothing has to wait for it."""


@dataclass(slots=True, eq=False)
class DecodeFailure:
    """A part that no decoder could make sense of."""

    reason: str
    """What was wrong, in words."""
    format: str
    """Format as far as it is known; "" if unknown."""
    route: str
    """Which decoder failed last."""
    source: SourceInfo | None = None
    """Where the part came from."""


Outcome = Decoded | DecodeFailure


class Decoder(ABC):
    """What decodes the parts of a sample; `SampleDecoder` and `DaliDecoder` implement it.

    A decoder is a recipe: cheap to make (also at class level), picklable, and it holds no pipeline, device or file.
    """

    placement: Placement
    """"worker": parts are decoded where they are read. "rank": media travel encoded to the rank's process."""

    @abstractmethod
    def decode(self, fname: str, raw: bytes) -> Any:
        """Returns one part decoded, by its file name or part name; the raw bytes if no handler knows the name.

        Raises:
            DecodeError: The part cannot be decoded.
        """

    @abstractmethod
    def stage(self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None) -> Any:
        """Returns what the part becomes where it is read: a decoded value, or a MediaHandle to be decoded later.

        Raises:
            DecodeError: The part cannot be decoded, or its header was refused.
        """

    @property
    def overrides_decode(self) -> bool:
        """Whether a subclass changes what `decode` gives, so that a pipeline has to call it in place of `stage`."""
        return False

    def decode_part(
        self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None
    ) -> Any:
        """Returns what a part becomes where it is read; what pipelines call. By default that of `stage`.

        Args:
            name: Part name or file name.
            raw: Content of the part.
            seed: Seed of random operations.
            source: Where it came from, for messages.

        Raises:
            DecodeError: The part cannot be decoded, or its header was refused.
        """
        return self.stage(name, raw, seed=seed, source=source)

    @abstractmethod
    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Starts to decode a block of handles and returns a future of one outcome per handle, in their order.

        The future never fails because of bad data. The handles' data must stay unchanged until it is done.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Returns the options as plain values."""

    def decode_block(self, handles: Sequence[MediaHandle]) -> list[Outcome]:
        """Decodes a block of handles and returns one outcome per handle, in their order."""
        return self.submit_block(handles).result()

    def start_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Starts to decode a block as `submit_block` does; with an overridden `decode_block`, decodes it by that."""
        if type(self).decode_block is Decoder.decode_block:
            return self.submit_block(handles)
        future: Future[list[Outcome]] = Future()
        future.set_result(self.decode_block(handles))
        return future

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the sample (part name to bytes) with all parts decoded; names with leading underscores pass through.

        Raises:
            DecodeError: A part cannot be decoded; the message names it.
        """
        return {
            name: value
            if name.startswith("__") or not isinstance(value, (bytes, bytearray, memoryview))
            else self.decode(name, bytes(value))
            for name, value in sample.items()
        }


FileStoreDecoder.register(Decoder)  # type: ignore[type-abstract]  # every decoder is one of files

_HOLDERS = (MediaHandle, dict, list, tuple, Lazy)
"""What handles are in, besides dataclasses."""
_MISSING: Any = object()


def map_handles(value: Any, replace: Callable[[MediaHandle], Any]) -> Any:
    """Returns `value` with every MediaHandle inside it replaced.

    Dataclasses (frozen ones too, with all their attributes), dicts and lists are changed in place, each once; tuples
    are made again. A Lazy is fetched, and what it gives is changed in it.

    Args:
        value: A sample: a dataclass, dict, list, tuple, or anything else (returned as it is).
        replace: Gives the replacement of one handle.
    """
    return _mapped(value, replace, set())


def _may_hold(value: Any) -> bool:
    return isinstance(value, _HOLDERS) or hasattr(type(value), "__dataclass_fields__")


def _mapped(value: Any, replace: Callable[[MediaHandle], Any], seen: set[int]) -> Any:
    """Does what `map_handles` says; `seen` has the ids of what was changed in place, which may refer to itself."""
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
    elif isinstance(value, Lazy):
        value.replace(lambda data: _mapped(data, replace, seen))
    else:
        _map_attributes(value, replace, seen)
    return value


def _map_attributes(value: Any, replace: Callable[[MediaHandle], Any], seen: set[int]) -> None:
    """Replaces the handles in the fields and further attributes of a dataclass instance."""
    kind = type(value)
    # A frozen dataclass refuses `setattr`; this one is not shared, as it came out of a hook or a worker.
    put = object.__setattr__ if kind.__dataclass_params__.frozen else setattr
    for name in {**kind.__dataclass_fields__, **getattr(value, "__dict__", {})}:
        inner = getattr(value, name, _MISSING)
        if not _may_hold(inner) or (isinstance(inner, tuple) and name.startswith("__")):
            continue
        changed = _mapped(inner, replace, seen)
        if changed is not inner:
            put(value, name, changed)
