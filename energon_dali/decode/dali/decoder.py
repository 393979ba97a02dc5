"""The decoder that decodes images and clips in blocks with NVIDIA DALI, on a GPU or on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.calls import explain_call
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.eligibility import (
    DaliHandle,
    DecodedHandle,
    decode_on_cpu,
    goes_to_dali,
    is_eligible_image,
)
from energon_dali.decode.dali.runtime.device import (
    Device,
    DeviceOption,
    check_device_option,
    has_dali,
    resolve_device,
    sees_gpu,
    uses_dali,
)
from energon_dali.decode.dali.runtime.pipeline import EngineOptions
from energon_dali.decode.dali.thresholds import prefers_dali_image
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.decode.interface import MediaHandle, Outcome, Placement
from energon_dali.decode.media_decoder import DecoderOptions, MediaDecoder
from energon_dali.decode.pil import decode_image
from energon_dali.decode.screen import screen_image
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from energon_dali.av import MediaFile
    from energon_dali.samples import SourceInfo

DEFAULT_MAX_BATCH_SIZE = 64
"""Images per run of a pipeline."""


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
        image_decode_device: "auto" (a GPU if there is one, else the CPU, and PIL where that is faster: the module
            `thresholds`), "cpu", "gpu" (torch's current one) or an ordinal.
        video_decode_device: Likewise for clips of videos. "auto" takes what is faster for each video, and PyAV is one
            of the choices.
        num_threads: CPU threads of a pipeline; None is the number of cores that this process may use, at most 32 on
            the CPU and 4 on a GPU, where formats that CPU threads decode (PNG, BMP, PNM) take as many as on the
            CPU.
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

    @explain_call(options=DecoderOptions.__annotations__)
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
            ("num_threads", num_threads),
            ("max_batch_size", max_batch_size),
            ("gpu_memory_budget_bytes", gpu_memory_budget_bytes),
        ):
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
        kind = DaliHandle if is_eligible_image(header, spec) else MediaHandle
        return kind(name, raw, header.format, header.width, header.height, spec, header.orientation, seed, source)

    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Starts to decode a block of handles and returns a future of one outcome per handle, in their order.

        Costs about 15 us per handle in the calling thread. On a GPU the values are for the CUDA stream that is current
        in the calling thread now: it waits for them when the future's result is taken; the host does not.

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
        from energon_dali.decode.dali.dispatch import submit_block

        return submit_block(self.engine_options, handles)

    def config(self) -> dict[str, Any]:
        """Returns the options as plain values."""
        return {
            **super().config(),
            "image_decode_device": self.image_decode_device,
            "video_decode_device": self.video_decode_device,
            "num_threads": self.num_threads,
            "max_batch_size": self.max_batch_size,
            "feed": self.feed,
            "gpu_memory_budget_bytes": self.gpu_memory_budget_bytes,
            "tuning": asdict(self.tuning),
        }

    @property
    def engine_options(self) -> EngineOptions:
        """The options that decide where and how blocks are decoded."""
        return EngineOptions(
            image_decode_device=self.image_decode_device,
            video_decode_device=self.video_decode_device,
            num_threads=self.num_threads,
            max_batch_size=self.max_batch_size,
            gpu_memory_budget_bytes=self.gpu_memory_budget_bytes,
            tuning=self.tuning,
        )

    def _finish_image(self, handle: MediaHandle) -> Any:
        in_rank = self.placement == "rank"
        if in_rank and isinstance(handle, DaliHandle) and self._prefers_dali(handle):
            return handle
        pixels = decode_image(handle)
        if not (in_rank and self._may_use_gpu() and self.spec.container == "torch"):
            return pixels
        # Decoded here, beside the other workers; the rank moves them to the GPU, which a worker must not touch.
        return DecodedHandle(
            handle.name,
            b"",
            handle.format,
            handle.width,
            handle.height,
            handle.spec,
            handle.orientation,
            handle.seed,
            handle.source,
            pixels,
        )

    def _prefers_dali(self, handle: DaliHandle) -> bool:
        spec = self.spec
        if self.image_decode_device != "auto" or spec.operations or spec.dtype != "uint8":
            return True
        kind: Literal["cpu", "gpu"] = "gpu" if self._may_use_gpu() else "cpu"
        return prefers_dali_image(handle.format, handle.width, handle.height, kind)

    def _finish_clips(self, handle: ClipsHandle, file: MediaFile) -> Any:
        from energon_dali.decode.pyav import decode_clips

        if self.placement == "worker":
            return decode_clips(handle, file)
        on_gpu = self.video_decode_device != "cpu" and sees_gpu()
        # Whether a GPU decodes AV1 is known in the rank alone.
        if goes_to_dali(handle, self.video_decode_device, Device("gpu" if on_gpu else "cpu")) or (
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
        return self.image_decode_device != "cpu" and sees_gpu()
