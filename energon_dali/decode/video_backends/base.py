"""What a video backend is: what it decodes on which device, and how blocks of chosen frames reach it."""

from __future__ import annotations

import functools
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.interface import Outcome
from energon_dali.decode.spec import BackendName

if TYPE_CHECKING:
    from energon_dali.av import MediaFile
    from energon_dali.decode.dali.runtime.device import Device
    from energon_dali.decode.dali.runtime.pipeline import EngineOptions
    from energon_dali.decode.video_backends.nvdec import Nvdec

Kind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class VideoDevice:
    """Where videos are decoded, as plain data: workers decide by it too, and they must not touch a GPU."""

    kind: Kind
    """The CPU or a GPU."""
    nvdec: Nvdec | None = None
    """What the GPU's hardware decoders said that they decode; None on the CPU, and where nobody asked them."""


class VideoBackend(ABC):
    """Decodes the chosen frames of videos with one library."""

    name: BackendName
    """Its name in `DaliDecoder(video_backend=...)`."""
    module: str
    """Module of the library."""
    extra: str = ""
    """Extra of this package that installs the library; "" if this package needs it."""
    kinds: frozenset[Kind]
    """Where it decodes."""
    reads_ranges = False
    """Whether it decodes files of which an index and some ranges were read (`SparseMedia`)."""

    @property
    def is_installed(self) -> bool:
        """Whether the library is there; does not import it."""
        return _finds(self.module)

    @abstractmethod
    def refusal(self, handle: ClipsHandle, where: VideoDevice, file: MediaFile | None = None) -> str:
        """Returns why this backend does not decode a video correctly; "" if it does.

        The cheap tests come first. The others read the headers of all frames, or decode the first frame, once per
        handle, which keeps what they found.

        Args:
            handle: The video, with its frames chosen.
            where: Where it would be decoded.
            file: The same file, if it is already open; it stays open.
        """

    def runs_in_worker(self, kind: Kind) -> bool:
        """Returns whether workers decode with it, so that nothing travels encoded to the rank."""
        return False

    def has_room(self, handle: ClipsHandle, options: EngineOptions, device: Device) -> bool:
        """Returns whether the memory of a device has room for the decoders that a video needs; counts them if so."""
        return True

    @abstractmethod
    def submit(
        self, options: EngineOptions, device: Device, handles: Sequence[ClipsHandle], stream: Any = None
    ) -> Future[list[Outcome]]:
        """Starts to decode videos; returns a future of one outcome per handle, in their order.

        PyAV decodes a video that the backend cannot decode after all (route "fallback").

        Args:
            options: Threads and limits of the decoder.
            device: Where to decode.
            handles: Videos that the backend does not refuse there. Their data must not change until the future is
                done.
            stream: torch.cuda.Stream on which the frames will be used, on a GPU. It does not wait for them yet.

        Returns:
            A future that fails only with DeviceFailedError or MemoryError, never because of a file.
        """


@functools.cache
def _finds(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
