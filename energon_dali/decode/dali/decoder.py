"""The decoder that decodes images and clips in blocks with NVIDIA DALI, on a GPU or on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.device import (
    Device,
    DeviceOption,
    check_device_option,
    has_dali,
    resolve_device,
    sees_gpu,
    uses_dali,
)
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle, Outcome, Placement
from energon_dali.decode.media_decoder import DecoderOptions, MediaDecoder
from energon_dali.decode.pil import decode_image
from energon_dali.decode.screen import screen_image
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from energon_dali.av import MediaFile
    from energon_dali.decode.dali.pipeline import PipelineOptions
    from energon_dali.decode.headers import ImageHeader
    from energon_dali.decode.spec import ImageSpec
    from energon_dali.samples import SourceInfo

DEFAULT_MAX_BATCH_SIZE = 64
"""Images per run of a pipeline."""
_MAX_CPU_THREADS = 32


class DaliHandle(MediaHandle):
    """A handle whose header was screened and found fit for DALI; any other handle is screened again, or goes to PIL."""

    __slots__ = ()


class DaliDecoder(MediaDecoder):
    """Decodes media in blocks with NVIDIA DALI in the rank's process; takes the options of `MediaDecoder` and more.

    Images are those of SampleDecoder: bit for bit on the CPU without resampling and Normalize, otherwise as the module
    `tolerance` says. Formats that DALI does not decode equally are decoded by PIL. Clips (`av_decode=VideoClips(...)`)
    have the frames and timestamps of SampleDecoder; PyAV decodes what DALI cannot. Without DALI "auto" decodes as
    SampleDecoder does. Cheap to make (also at class level) and picklable: DALI is imported and a pipeline built when
    the first block comes.

        class Encoder(TaskEncoder):
            decoder = DaliDecoder(image_decode="torchrgb8")

    Args:
        image_decode_device: "auto" (a GPU if there is one, else the CPU), "cpu", "gpu" (torch's current one) or an
            ordinal.
        video_decode_device: Likewise for clips of videos. "auto" takes what is faster for each video, and PyAV is one
            of the choices.
        num_threads: CPU threads of a pipeline; None is the number of cores that this process may use, at most 32 on
            the CPU and 4 on a GPU.
        max_batch_size: Most images per run; larger blocks are split.
        feed: "block" gives DALI what the workers read, for every dataset; "native" lets DALI read the shards itself
            where the order of the dataset allows it.
        gpu_memory_budget_bytes: Most memory of the images in flight on a GPU with feed="block"; None is 8 GiB. Decoded
            batches that wait for the trainer, or that it holds, come on top.
        tuning: Settings of DALI that change speed and memory alone.
        **options: The options of `MediaDecoder`.

    Raises:
        ConfigError: An option, or a combination of options, cannot work.
    """

    def __init__(
        self,
        *,
        image_decode_device: DeviceOption = "auto",
        video_decode_device: DeviceOption = "auto",
        num_threads: int | None = None,
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        feed: Literal["block", "native"] = "block",
        gpu_memory_budget_bytes: int | None = None,
        tuning: DaliTuning | None = None,
        **options: Unpack[DecoderOptions],
    ) -> None:
        super().__init__(**options)
        check_device_option("image_decode_device", image_decode_device)
        check_device_option("video_decode_device", video_decode_device)
        if feed not in ("block", "native"):
            raise ConfigError(
                f'feed={feed!r} is unknown. "block" takes encoded images from the workers, "native" lets DALI read the '
                'shards. Give one of the two; "block" works with every dataset.'
            )
        for name, value in (
            ("num_threads", num_threads), ("max_batch_size", max_batch_size),
            ("gpu_memory_budget_bytes", gpu_memory_budget_bytes),
        ):  # fmt: skip
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(
                    f"{name}={value!r} cannot work. It is a whole number of at least 1. Leave it out for the default."
                )
        if tuning is not None and not isinstance(tuning, DaliTuning):
            raise ConfigError(
                f"tuning={tuning!r} is no DaliTuning. Give DaliTuning(hw_decoder_load=...), or leave it out."
            )
        self.image_decode_device = image_decode_device
        self.video_decode_device = video_decode_device
        self.num_threads = num_threads
        self.max_batch_size = max_batch_size
        self.feed = feed
        self.gpu_memory_budget_bytes = gpu_memory_budget_bytes
        self.tuning = tuning or DaliTuning()

    @property
    def placement(self) -> Placement:  # type: ignore[override]
        """Is "rank" where DALI is used, "worker" where "auto" found none. Touches neither DALI nor CUDA.

        Raises:
            DeviceError: DALI or a GPU was asked for by name and is not there.
            ConfigError: Parts become what cannot travel to the rank.
        """
        if isinstance(self.av_decode, VideoClips):
            uses_dali(self.video_decode_device, "video")
        if not uses_dali(self.image_decode_device):
            return "worker"
        if self.av_decode == "pyav":
            raise ConfigError(
                'av_decode="pyav" was given to a DaliDecoder. It opens files in the workers, and an open file cannot '
                'travel to the rank, where hooks run. Use av_decode="AVDecoder", or SampleDecoder.'
            )
        return "rank"

    @staticmethod
    def available() -> bool:
        """Returns whether DALI is installed; on the CPU it then works everywhere."""
        return has_dali()

    @property
    def device(self) -> Device:
        """The device that images are decoded on in this process. May initialise CUDA.

        Raises:
            DeviceError: There is none.
        """
        return resolve_device(self.image_decode_device)

    @property
    def video_device(self) -> Device:
        """The device that clips are decoded on, or brought to, in this process. May initialise CUDA.

        Raises:
            DeviceError: There is none.
        """
        return resolve_device(self.video_decode_device, "video")

    def make_handle(
        self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None
    ) -> MediaHandle:
        """Returns the handle of an image whose header was screened: a DaliHandle if DALI may decode it.

        Raises:
            DecodeError: The header was refused.
        """
        spec = self.spec
        header = screen_image(raw, max_pixels=spec.max_pixels, max_bytes=spec.max_bytes)
        kind = DaliHandle if suits_dali(header, spec) else MediaHandle
        return kind(name, raw, header.format, header.width, header.height, spec, header.orientation, seed, source)

    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Starts to decode a block of handles and returns a future of one outcome per handle, in their order.

        Costs about 15 us per handle in the calling thread. On a GPU the values are ready on the CUDA stream that is
        current in the calling thread now; nothing waits for them.

        Returns:
            A future that fails with DeviceFailedError or MemoryError alone, never because of bad data. The handles'
            data must stay unchanged until it is done.

        Raises:
            DeviceError: The device that was asked for is not there.
        """
        if self.placement == "worker":
            future: Future[list[Outcome]] = Future()
            future.set_result([decode_on_cpu(handle) for handle in handles])
            return future
        from energon_dali.decode.dali.blocks import submit_to_engines

        return submit_to_engines(self, handles)

    def config(self) -> dict[str, Any]:
        """Returns the options as plain values."""
        return {
            **super().config(), "image_decode_device": self.image_decode_device,
            "video_decode_device": self.video_decode_device, "num_threads": self.num_threads,
            "max_batch_size": self.max_batch_size, "feed": self.feed,
            "gpu_memory_budget_bytes": self.gpu_memory_budget_bytes, "tuning": asdict(self.tuning),
        }  # fmt: skip

    def threads_on(self, device: Device) -> int:
        """Returns the number of CPU threads of a pipeline on a device."""
        if self.num_threads is not None:
            return self.num_threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, _MAX_CPU_THREADS if device.kind == "cpu" else 4)

    def pipeline_options(
        self, device: Device, *, most_samples: int | None = None, batch_size: int | None = None
    ) -> PipelineOptions:
        """Returns how a pipeline of this decoder runs on a device.

        Args:
            device: Where it decodes.
            most_samples: Bound of the samples per run beside `max_batch_size`.
            batch_size: Samples per run, in place of both.
        """
        from energon_dali.decode.dali.pipeline import PipelineOptions

        samples = batch_size or min(self.max_batch_size, most_samples or self.max_batch_size)
        return PipelineOptions(
            device=device, num_threads=self.threads_on(device), max_batch_size=samples, tuning=self.tuning
        )

    def _finish_image(self, handle: MediaHandle) -> Any:
        if isinstance(handle, DaliHandle):
            return handle if self.placement == "rank" else decode_image(handle)
        # PIL's pixels are made where the sample is read, unless they must end on a GPU, which a worker must not touch.
        return handle if self._may_use_gpu() else decode_image(handle)

    def _finish_clips(self, handle: ClipsHandle, file: MediaFile) -> Any:
        from energon_dali.decode.pyav import decode_clips

        if self.placement == "worker":
            return decode_clips(handle, file)
        on_gpu = self.video_decode_device != "cpu" and sees_gpu()
        # Whether a GPU decodes AV1 is known in the rank alone.
        if takes_dali(handle, self.video_decode_device, Device("gpu" if on_gpu else "cpu")) or (
            on_gpu and handle.codec == "av1"
        ):
            file.close()
            return handle
        clips = decode_clips(handle, file)
        if not on_gpu:
            return clips
        # Decoded here, beside the other workers; the rank moves it to the GPU, which a worker must not touch.
        handle.decoded, handle.data = clips, b""
        return handle

    def _may_use_gpu(self) -> bool:
        return self.placement == "rank" and self.image_decode_device != "cpu" and sees_gpu()


def takes_dali(handle: ClipsHandle, option: DeviceOption, device: Device) -> bool:
    """Returns whether DALI, and not PyAV, decodes the clips of a video.

    Args:
        handle: The video.
        option: `video_decode_device` as the user gave it: "auto" takes DALI where it is faster, any other wherever
            DALI can decode the video rightly.
        device: Where DALI would decode it; a GPU without a number in a process that must not ask it anything.
    """
    from energon_dali.decode.dali.video import prefers_dali, suits_dali_video

    if handle.decoded is not None or handle.rotation or handle.spec.damaged != "error":
        return False
    if option == "auto" and not prefers_dali(handle, device.kind):
        return False
    return suits_dali_video(handle, device.kind, device.ordinal)


def suits_dali(header: ImageHeader, spec: ImageSpec) -> bool:
    """Returns whether DALI decodes an image for certain, to the pixels that PIL gives."""
    if not header.dali_decodable or header.bit_depth > 8:
        return False
    if spec.mode == "RGBA":
        return not header.has_alpha  # DALI drops the alpha channel
    # PIL turns a palette and CMYK to gray by other formulas than RGB.
    return spec.mode != "L" or header.color not in ("palette", "cmyk", "ycck")


def decode_on_cpu(handle: MediaHandle) -> Outcome:
    """Returns the outcome of decoding any handle with PIL or PyAV in the calling thread."""
    if isinstance(handle, ClipsHandle):
        from energon_dali.decode.pyav import decode_by_pyav

        return decode_by_pyav(handle)
    return decode_by_pil(handle)


def decode_by_pil(handle: MediaHandle, bring: Callable[[Any], Any] | None = None) -> Outcome:
    """Returns the outcome of decoding a handle with PIL in the calling thread.

    Args:
        handle: Any image.
        bring: Moves the value to where it is wanted; None leaves it on the CPU.
    """
    try:
        value = decode_image(handle)
        return Decoded(value if bring is None else bring(value), "pil")
    except DecodeError as error:
        return DecodeFailure(error.reason, error.format or handle.format, error.route or "pil", handle.source)
