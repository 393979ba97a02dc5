"""Which media DALI may decode, and the handles that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.dali.images.finish import can_finish
from energon_dali.decode.dali.runtime.device import Device, DeviceOption
from energon_dali.decode.dali.thresholds import prefers_dali_clips
from energon_dali.decode.interface import MediaHandle
from energon_dali.decode.operations import crops_resized
from energon_dali.decode.reduction import decoded_factor

if TYPE_CHECKING:
    from energon_dali.decode.formats import ImageHeader
    from energon_dali.decode.spec import ImageSpec

_LEAST_FACTOR = 4
"""Divisor of both sides from which on PIL's smaller image takes less time (docs/benchmarks.md, 1920 x 1080)."""


class DaliHandle(MediaHandle):
    """A handle that passed screening and `is_eligible_image`; the rank trusts it and screens all other handles."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class DecodedHandle(MediaHandle):
    """An image that PIL decoded in a worker, to be moved to a GPU by the rank; `data` is empty.

    A worker must not touch the GPU, and the rank's process has few threads to spare for PIL.
    """

    pixels: Any = None
    """Torch tensor, numpy array or PIL image, as the spec says."""

    def decode(self) -> Any:
        """Returns the pixels, on the CPU."""
        return self.pixels


def goes_to_dali(handle: ClipsHandle, option: DeviceOption, device: Device) -> bool:
    """Returns whether DALI, and not PyAV, decodes the clips of a video.

    Args:
        handle: The video.
        option: `video_decode_device` as the user gave it. "auto" takes DALI where it is faster; any other option takes
            it wherever it decodes the video correctly.
        device: Where DALI would decode it; a GPU without an ordinal in a process that must not touch the GPU.
    """
    from energon_dali.decode.dali.video.eligibility import is_eligible_video

    if handle.decoded is not None or handle.rotation or handle.spec.damaged != "error":
        return False
    if option == "auto" and not prefers_dali_clips(
        handle.codec, handle.width, handle.height, handle.frames_to_decode, device.kind
    ):
        return False
    return is_eligible_video(handle, device.kind, device.ordinal)


def is_left_to_pil(handle: MediaHandle) -> bool:
    """Returns whether PIL decodes an image at a smaller scale in less time than DALI its region, on the CPU.

    At half its size it does not, unless DALI would also resample.
    """
    return decoded_factor(handle) >= (_LEAST_FACTOR if can_finish(handle.spec) else 2)


def is_eligible_image(header: ImageHeader, spec: ImageSpec) -> bool:
    """Returns whether DALI is certain to decode an image, and to the pixels that PIL gives."""
    if not header.dali_decodable or header.bit_depth > 8:
        return False
    if spec.front_end is not None:
        # Transparent images are put on white, and a front end may refuse what is not RGB: both by PIL. So are crops
        # after a resize, which are resampled twice.
        return (
            not header.has_alpha
            and (spec.front_end.convert_rgb or header.color not in ("gray", "palette", "cmyk", "ycck"))
            and not crops_resized(spec.geometric)
        )
    if spec.mode == "RGBA":
        return not header.has_alpha  # DALI drops the alpha channel
    # PIL converts palettes and CMYK to gray with other formulas than RGB.
    return spec.mode != "L" or header.color not in ("palette", "cmyk", "ycck")
