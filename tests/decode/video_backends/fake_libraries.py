"""Stand-ins for torchcodec and PyNvVideoCodec with what their documentation says of the calls that are used here."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch


def all_frames(data: bytes, form: str) -> torch.Tensor:
    """Returns every frame of a video, decoded by FFmpeg: uint8[n, H, W, 3], or uint8[n, 3 H / 2, W] in NV12."""
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.reformat(format=form).to_ndarray() for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(frames))


class FakeTorchcodec:
    """torchcodec 0.17: `decoders` and `transforms.Resize`."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.error: Exception | None = None
        self.falls_back = False
        self.extra_frames = 0

    def loaded(self) -> tuple[Any, Any]:
        """Returns what the backend loads."""
        library = self

        class VideoDecoder:
            def __init__(self, source: bytes, *, dimension_order: str, device: str, transforms: Any = None) -> None:
                if library.error is not None:
                    raise library.error
                assert isinstance(source, bytes)
                assert dimension_order == "NHWC"
                library.devices.append(device)
                self.cpu_fallback = library.falls_back
                self._frames = all_frames(source, "rgb24")

            def __len__(self) -> int:
                return len(self._frames) + library.extra_frames

            def get_frames_at(self, indices: list[int]) -> Any:
                return SimpleNamespace(data=self._frames[indices])

        return SimpleNamespace(VideoDecoder=VideoDecoder), None


class FakePyNvVideoCodec:
    """PyNvVideoCodec 2.2: `SimpleDecoder`, `OutputColorType`."""

    OutputColorType = SimpleNamespace(NATIVE="native", RGB="rgb")

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.reconfigured = 0
        self.error: Exception | None = None
        library = self

        class SimpleDecoder:
            def __init__(self, enc_file_path: str, **options: Any) -> None:
                library.made.append(options)
                self._open(enc_file_path)

            def _open(self, path: str) -> None:
                if library.error is not None:
                    raise library.error
                self._frames = all_frames(Path(path).read_bytes(), "nv12")

            def reconfigure_decoder(self, new_source: str) -> None:
                library.reconfigured += 1
                self._open(new_source)

            def __len__(self) -> int:
                return len(self._frames)

            def get_batch_frames_by_index(self, indices: list[int]) -> list[torch.Tensor]:
                return [self._frames[index].clone() for index in indices]

        self.SimpleDecoder = SimpleDecoder
