"""Small pieces of real work that show whether a path works: one image, one video, one kernel."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from energon_dali.errors import DeviceError

if TYPE_CHECKING:
    from energon_dali.decode.interface import Outcome

WIDTH, HEIGHT = 320, 240
FRAMES = 24


def image(device: str) -> dict[str, Any]:
    """Decodes a JPEG and returns the route and the largest difference from PIL, in levels.

    Args:
        device: "pil", or the `image_decode_device` of DaliDecoder.

    Raises:
        DeviceError: It failed, or was decoded on another route.
    """
    from PIL import Image

    from energon_dali.decode import DaliDecoder, SampleDecoder

    stream = io.BytesIO()
    Image.fromarray(_test_image(0)).save(stream, "jpeg", quality=90)
    data = stream.getvalue()
    wanted = np.asarray(SampleDecoder(image_decode="rgb8").decode("jpg", data))
    if device == "pil":
        return {"route": "pil", "difference": int(np.abs(wanted.astype(int) - _test_image(0)).max())}
    decoder = DaliDecoder(image_decode="rgb8", image_decode_device=cast(Any, device))
    (outcome,) = decoder.decode_block([decoder.stage("jpg", data)])
    value = _value(outcome, device)
    return {"route": f"dali-{device}", "difference": int(np.abs(np.asarray(value).astype(int) - wanted).max())}


def video(device: str) -> dict[str, Any]:
    """Decodes a clip of H.264 and returns the route and the mean difference from PyAV, in levels.

    Args:
        device: "pyav", or the `video_decode_device` of DaliDecoder.

    Raises:
        DeviceError: It failed, or was decoded on another route.
    """
    from energon_dali.decode import DaliDecoder, SampleDecoder
    from energon_dali.decode.clips import VideoClips
    from energon_dali.decode.pyav import stage_clips

    spec = VideoClips(1, 8, layout="FHWC")
    data = _test_video()
    wanted = SampleDecoder(av_decode=spec).stage("mp4", data).frames
    if device == "pyav":
        return {"route": "pyav", "difference": 0.0, "frames": len(wanted[0])}
    handle, file = stage_clips("mp4", data, spec, seed=0)
    file.close()
    (outcome,) = DaliDecoder(av_decode=spec, video_decode_device=cast(Any, device)).decode_block([handle])
    frames = _value(outcome, device).frames.cpu()
    difference = float((frames.float() - wanted.float()).abs().mean())
    return {"route": f"dali-{device}", "difference": round(difference, 2), "frames": len(frames[0])}


def kernel() -> dict[str, Any]:
    """Runs a Triton kernel on the current GPU and compares it with the CPU, bit for bit.

    Raises:
        DeviceError: It did not run on Triton, or a bit differs.
    """
    import torch

    from energon_dali.kernels.backend import backend_for, why_no_triton
    from energon_dali.kernels.pad_stack import pad_stack

    images = [torch.from_numpy(_test_image(0)), torch.from_numpy(_test_image(1)[:77, :55].copy())]
    got = pad_stack([one.cuda() for one in images], dtype="bfloat16")
    if backend_for("pad_stack", got.device) != "triton":
        raise DeviceError(f"{why_no_triton()}, so the operation ran as plain PyTorch.")
    if not torch.equal(got.cpu(), pad_stack(images, dtype="bfloat16")):
        raise DeviceError("The kernel's result differs from the CPU's. Install the Triton version that torch requires.")
    return {"route": "triton"}


def _test_image(step: int) -> Any:
    """Returns uint8[240, 320, 3]: smooth colours that move with the step."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin((x + 4 * step) / 40 + color) * np.cos(y / (30 + 5 * color)) for color in range(3)]
    return (127.5 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)


def _test_video() -> bytes:
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("libx264", rate=25)
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for step in range(FRAMES):
            container.mux(track.encode(av.VideoFrame.from_ndarray(_test_image(step), format="rgb24")))
        container.mux(track.encode(None))
    return stream.getvalue()


def _value(outcome: Outcome, device: str) -> Any:
    """Returns the decoded value.

    Raises:
        DeviceError: Decoding failed, or took another route.
    """
    from energon_dali.decode.interface import DecodeFailure

    if isinstance(outcome, DecodeFailure):
        raise DeviceError(f"Decoding on the {device} failed: {outcome.reason}")
    if outcome.route not in (f"dali-{device}", f"dali-{device}-hardware"):
        raise DeviceError(f"DALI on the {device} refused it; it was decoded on the route {outcome.route}.")
    return outcome.value
