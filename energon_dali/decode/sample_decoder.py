"""The decoder that needs only a CPU: it decodes with PIL and PyAV in the process that reads the sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from energon_dali.decode.clips import ClipsHandle
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome, Placement
from energon_dali.decode.media_decoder import MediaDecoder, has_video_front_end
from energon_dali.decode.pil import decode_image
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from energon_dali.av import MediaFile


class SampleDecoder(MediaDecoder):
    """Decodes each part in the process that reads it: images with PIL, video and audio with PyAV. Energon's default.

    Takes the options of `MediaDecoder`. Without operations the values equal those of webdataset bit for bit.

        decoder = SampleDecoder(image_decode="torchrgb8", operations=[RandomResizedCrop(224), HorizontalFlip()])
        decoder.decode("0001.jpg", raw)    # uint8[3, 224, 224]
    """

    placement: Placement = "worker"

    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Decodes a block of handles in the calling thread and returns a completed future.

        Raises:
            MemoryError: There is not enough memory for an image.
        """
        future: Future[list[Outcome]] = Future()
        future.set_result([decode_on_cpu(handle) for handle in handles])
        return future

    @property
    def decodes_late(self) -> bool:  # type: ignore[override]
        """With a front end: hooks before decoding see handles that know their number of tokens."""
        return self.spec.front_end is not None or has_video_front_end(self.av_decode)

    def _finish_image(self, handle: MediaHandle) -> Any:
        return decode_image(handle) if self.spec.front_end is None else handle

    def _finish_clips(self, handle: ClipsHandle, file: MediaFile) -> Any:
        from energon_dali.decode.pyav import decode_clips

        if handle.spec.front_end is not None:
            file.close()
            return handle
        return decode_clips(handle, file)


def decode_on_cpu(handle: MediaHandle, bring: Callable[[Any], Any] | None = None) -> Outcome:
    """Returns the outcome of decoding any handle with PIL or PyAV in the calling thread.

    Args:
        handle: An image or clips.
        bring: Moves the pixels to their device; None leaves them on the CPU.
    """
    if isinstance(handle, ClipsHandle):
        from energon_dali.decode.pyav import decode_by_pyav  # images do without PyAV

        return decode_by_pyav(handle, bring)
    try:
        value = decode_image(handle)
        return Decoded(value if bring is None else bring(value), "pil")
    except DecodeError as error:
        return DecodeFailure(error.reason, error.format or handle.format, error.route or "pil", handle.source)
