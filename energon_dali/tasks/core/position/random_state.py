"""The states of the global random number generators, which dropout and the like draw from."""

from __future__ import annotations

import base64
import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from energon_dali.errors import StateError

_MAX_STATE_BYTES = 1 << 20
"""What one state unpacks to: the largest, torch's on the CPU, has 5 KiB."""


@dataclass(frozen=True, slots=True)
class RandomState:
    """The generators of Python, numpy and torch, and that of torch for the current CUDA device if CUDA is in use."""

    of_python: tuple[Any, ...]
    """What random.getstate() gave."""
    of_numpy: tuple[Any, ...]
    """What numpy.random.get_state() gave."""
    of_torch: torch.Tensor
    """What torch.get_rng_state() gave: uint8 [n], CPU."""
    of_cuda: torch.Tensor | None
    """What torch.cuda.get_rng_state() gave: uint8 [m], CPU."""

    @classmethod
    def now(cls) -> RandomState:
        """Returns the present states."""
        cuda = torch.cuda.get_rng_state() if _uses_cuda() else None
        numpy_state: Any = np.random.get_state()
        return cls(random.getstate(), numpy_state, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Puts the generators into these states; that of CUDA only where CUDA is in use."""
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda is not None and _uses_cuda():
            torch.cuda.set_rng_state(self.of_cuda)

    def as_plain(self) -> dict[str, Any]:
        """Returns the states as plain values that survive JSON, about 10 KB."""
        version, words, gauss = self.of_python
        name, keys, *rest = self.of_numpy
        return {
            "python": [version, _packed(np.array(words, np.uint32).tobytes()), gauss],
            "numpy": [name, _packed(keys.tobytes()), *map(_plain, rest)],
            "torch": _packed(self.of_torch.numpy().tobytes()),
            "cuda": None if self.of_cuda is None else _packed(self.of_cuda.numpy().tobytes()),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RandomState:
        """Returns what as_plain wrote.

        Raises:
            StateError: It is damaged.
        """
        try:
            version, words, gauss = plain["python"]
            name, keys, *rest = plain["numpy"]
            numbers = np.frombuffer(_unpacked(words), np.uint32).tolist()
            return cls(
                (version, tuple(numbers), gauss),
                (name, np.frombuffer(_unpacked(keys), np.uint32), *rest),
                torch.frombuffer(_unpacked(plain["torch"]), dtype=torch.uint8),
                None if plain["cuda"] is None else torch.frombuffer(_unpacked(plain["cuda"]), dtype=torch.uint8),
            )
        except (KeyError, ValueError, TypeError, zlib.error) as error:
            raise StateError(
                f"The checkpoint's states of the random number generators are damaged ({error}). Restore another one."
            ) from error


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _packed(raw: bytes) -> str:
    return base64.b85encode(zlib.compress(raw)).decode()


def _unpacked(text: str) -> bytearray:
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(base64.b85decode(text), _MAX_STATE_BYTES)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or unpacks to more than {_MAX_STATE_BYTES:,} bytes")
    return bytearray(content)


def _plain(value: Any) -> int | float:
    return float(value) if isinstance(value, float) else int(value)
