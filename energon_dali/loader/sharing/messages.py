"""Messages between a rank that reads and the ranks that follow it."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.loader.state_compatibility import as_plain

if TYPE_CHECKING:
    from energon_dali.loader.processes.messages import StreamFailed
    from energon_dali.loader.processes.tensor_table import Extent, TensorLayout


@dataclass(frozen=True, slots=True)
class Course:
    """The calls of a loader that decide which batches follow. All ranks that share their batches make the same ones."""

    calls: int = 0
    """Number of calls of `restore_state_rank`, `skip_steps`, `set_weights`, `resize` and `start_at`."""
    given: int = 0
    """Elements, and ends of epochs, that were delivered before the last of them."""
    digest: str = ""
    """Digest of the calls and their arguments."""

    def after(self, name: str, given: int, arguments: Mapping[str, Any]) -> Course:
        """Returns the course after one more call.

        Args:
            name: Name of the method.
            given: Elements, and ends of epochs, that were delivered before.
            arguments: Arguments of the call.
        """
        text = json.dumps([self.digest, name, dict(arguments)], sort_keys=True, default=as_plain)
        return Course(self.calls + 1, given, hashlib.blake2b(text.encode(), digest_size=12).hexdigest())


@dataclass(frozen=True, slots=True)
class Hello:
    """A follower asks for the batches of a loader."""

    loader: int
    """Number of the loader: all ranks make them in the same order."""
    rank: int
    """Number of the follower in the whole job."""
    dataset: str
    """How the follower's program asked for the dataset."""
    data_rank: tuple[int, int]
    """Its data-parallel rank, and the number of those."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What followers report about the dataset, which they do not open. `resize` changes these values."""

    length: int
    """Batches of a rank in an epoch."""
    micro_batches_per_step: int | None
    """None without global batches."""
    counts_packs: bool
    """Whether steps are made of packs."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The reader describes its dataset to a follower."""

    sizes: Sizes
    """Those before `resize` was called."""
    state: bytes
    """The pickled state of the reader's loader before anything was taken or restored."""
    refusal: str | None = None
    """Why the reader does not serve this follower."""


@dataclass(frozen=True, slots=True)
class Took:
    """A follower asks for one more element, and releases arenas."""

    course: Course
    given: int
    """Elements, and ends of epochs, that it has taken before."""
    released: tuple[int, ...]
    """Arenas that nothing in its process refers to any more."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A follower closed its loader: the end of its connection is then not an error."""


@dataclass(frozen=True, slots=True)
class Element:
    """A batch, or the end of an epoch."""

    course: Course
    given: int
    """Elements, and ends of epochs, that were delivered before."""
    state: bytes
    """The pickled state of the reader's loader after it."""
    sizes: Sizes
    """Those of the reader's loader."""
    ends_epoch: bool
    payload: Payload | None
    """None at the end of an epoch."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Where the bytes of a batch are."""

    arena: int
    """Number of the arena; -1 for a small batch, whose bytes are `inline`."""
    new_capacity: int
    """Size of an arena that this follower has not seen, in bytes; the message carries its descriptor. 0 otherwise."""
    dropped: tuple[int, ...]
    """Arenas that the reader will not use again."""
    size: int
    """Bytes of the batch."""
    extents: list[Extent]
    """See `serialization.deserialize`."""
    tensors: TensorLayout | None
    """See `serialization.deserialize`."""
    must_copy: bool
    """Whether the follower copies the batch at once, because many arenas are in use."""
    on_gpu: bool
    """Whether the batch was on the reader's GPU; it travels through host memory."""
    inline: bytes = b""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reader, or a relay, waits for consumers that have not asked for a batch for some seconds."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """An exception ended the reader's iteration."""

    course: Course
    given: int
    error: StreamFailed


FromFollower = Hello | Took | Goodbye | Waiting
FromReader = Welcome | Element | Waiting | Failed


def encode(message: FromFollower | FromReader) -> bytes:
    """Returns a message as bytes."""
    return pickle.dumps(message, protocol=5)


def decode(data: bytes | bytearray) -> Any:
    """Returns the message; both ends run as the same user, which was checked."""
    return pickle.loads(data)
