"""The decoder that decodes images and clips in blocks with NVIDIA DALI, on a GPU or on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import asdict, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.av.sparse_media import SparseMedia
from energon_dali.calls import explain_call
from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.dali.dispatch import DaliHandle, is_eligible_image, is_left_to_pil, submit_block
from energon_dali.decode.dali.runtime.device import (
    Device,
    DeviceOption,
    check_device_option,
    has_dali,
    likely_gpu,
    load_dali,
    resolve_device,
    sees_gpu,
    uses_dali,
)
from energon_dali.decode.dali.runtime.host_decoding import DecodedHandle
from energon_dali.decode.dali.runtime.pipeline import EngineOptions
from energon_dali.decode.dali.thresholds import prefers_dali_image
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.decode.images import decode_image, screen_image
from energon_dali.decode.interface import DecodeFailure, MediaHandle, Outcome, Placement
from energon_dali.decode.media_decoder import DecoderOptions, MediaDecoder, check_layout
from energon_dali.decode.part_kind import decodes_kind
from energon_dali.decode.spec import BackendOption
from energon_dali.decode.video_backends.base import VideoBackend, VideoDevice
from energon_dali.decode.video_backends.choice import BACKENDS, check_backend_option, choose_backend, wanted_backends
from energon_dali.decode.video_backends.excerpt import excerpt_of
from energon_dali.decode.video_backends.frame_backend import FrameBackend
from energon_dali.decode.video_backends.nvdec import Nvdec, ask_nvdec, library_obstacle
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.samples.base import SourceInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from energon_dali.av import MediaFile

DEFAULT_MAX_BATCH_SIZE = 64
"""Images per run of a pipeline."""


class DaliDecoder(MediaDecoder):
    """Decodes media in blocks with NVIDIA DALI in the rank's process; takes the options of `MediaDecoder` and more.

    Images equal those of SampleDecoder: bit for bit on the CPU without resampling and Normalize, otherwise up to
    rounding (docs/decoders.md says how far). PIL decodes the formats that DALI would decode differently. Clips
    (`av_decode=VideoClips(...)`) have the frames and timestamps of SampleDecoder; PyAV decodes what DALI cannot.
    Without DALI, "auto" decodes as SampleDecoder does. A decoder is cheap to make (also at class level) and picklable:
    the first block imports DALI and builds a pipeline.

        class Encoder(TaskEncoder):
            decoder = DaliDecoder(image_decode="torchrgb8")

    Args:
        image_decode_device: "auto" (a GPU if there is one, else the CPU, and PIL where that is faster: the module
            `thresholds`), "cpu", "gpu" (torch's current one) or an ordinal. Cost: a GPU decodes next to the model, and
            takes memory of it; the CPU needs cores (docs/gpu.md).
        video_decode_device: Likewise for clips of videos. "auto" takes the fastest choice for each video; PyAV is one
            of the choices.
        video_backend: The library that decodes clips: "auto", "dali", "pyav", "torchcodec" or "pynvvideocodec". What
            it does not decode correctly, PyAV decodes in the workers. docs/video-backends.md.
        num_threads: CPU threads of a pipeline. None means the cores of the rank, its share of the host's, at most 32 on
            the CPU. On a GPU it means half of them, at most 8 for images and 16 for videos; formats that CPU threads
            decode (PNG, BMP, PNM) get all, at most 16. `energon-dali doctor` shows them. Cost: cores that workers and
            the trainer do not have.
        max_batch_size: Most images per run; larger blocks are split. Cost: memory for the images of a run.
        feed: "block" gives DALI what the workers read, for every dataset; "native" lets DALI read the shards itself
            where the order of the dataset allows it. Cost: "native" needs parallel_shard_iters=1 and takes no front
            end.
        gpu_memory_budget_bytes: Most memory of the images in flight on a GPU with feed="block"; None is 8 GiB. It does
            not include decoded batches that wait for the trainer or that the trainer holds. Cost: memory of the GPU up
            to that size; less makes decoding wait.
        tuning: Settings of DALI that change only speed and memory.

    Raises:
        ConfigError: An option, or a combination of options, cannot work.
    """

    @explain_call(options=DecoderOptions.__annotations__)
    def __init__(
        self,
        *,
        image_decode_device: DeviceOption = "auto",
        video_decode_device: DeviceOption = "auto",
        video_backend: BackendOption = "auto",
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
        check_backend_option(video_backend, video_decode_device)
        if feed not in ("block", "native"):
            raise ConfigError(
                f'feed={feed!r} is unknown. Give "block", which takes encoded images from the workers and works with '
                'every dataset, or "native", which lets DALI read the shards.'
            )
        if feed == "native" and self.spec.front_end is not None:
            raise ConfigError(
                f'feed="native" was given with front_end={type(self.spec.front_end).__name__}(...). DALI then decodes '
                "while it reads the shards, without front ends, which take images from blocks. Leave feed "
                "out, or leave front_end out and run the processor in encode_sample."
            )
        for name, value in (
            ("num_threads", num_threads),
            ("max_batch_size", max_batch_size),
            ("gpu_memory_budget_bytes", gpu_memory_budget_bytes),
        ):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(
                    f"{name}={value!r} is invalid: it must be a whole number of at least 1. Leave it out for the "
                    "default."
                )
        if tuning is not None and not isinstance(tuning, DaliTuning):
            raise ConfigError(
                f"tuning={tuning!r} is not a DaliTuning. Give DaliTuning(hw_decoder_load=...), or leave it out."
            )
        if feed == "native" and self.spec.decode_scale != "exact":
            raise ConfigError(
                f'decode_scale={self.spec.decode_scale!r} was given with feed="native". DALI then reads the images '
                'itself and decodes them at full size. Use feed="block", or leave decode_scale out.'
            )
        self.image_decode_device = image_decode_device
        self.video_decode_device = video_decode_device
        self.video_backend = video_backend
        self.nvdec: Nvdec | None = None
        """What the GPU's hardware decoders decode, once `prepare_workers` asked it."""
        self.num_threads = num_threads
        self.max_batch_size = max_batch_size
        self.feed = feed
        self.gpu_memory_budget_bytes = gpu_memory_budget_bytes
        self.tuning = tuning or DaliTuning()
        self.engine_options = EngineOptions(
            image_decode_device=image_decode_device,
            video_decode_device=video_decode_device,
            num_threads=num_threads,
            max_batch_size=max_batch_size,
            gpu_memory_budget_bytes=gpu_memory_budget_bytes,
            tuning=self.tuning,
            video_backend=video_backend,
        )

    @cached_property  # asked for every image
    def placement(self) -> Placement:  # type: ignore[override]
        """Where media are decoded: "rank" with DALI, "worker" if "auto" did not find it. Touches neither DALI nor CUDA.

        The first answer holds for the process: trees of datasets are built by it.

        Raises:
            DeviceError: The options name DALI or a GPU, and it is not there.
            ConfigError: Parts become values that cannot travel to the rank.
        """
        if isinstance(self.av_decode, VideoClips):
            uses_dali(self.video_decode_device, "video")
        if not uses_dali(self.image_decode_device):
            return "worker"
        if self.spec.front_end is not None and self.image_decode_device == "auto" and not sees_gpu():
            # On the CPU, rendering takes most of the time, and DALI does not render: workers do all of it.
            return "worker"
        if self.av_decode == "pyav":
            raise ConfigError(
                'av_decode="pyav" was given to a DaliDecoder. It opens files in the workers, and an open file cannot '
                'travel to the rank, where hooks run. Use av_decode="AVDecoder", or SampleDecoder.'
            )
        return "rank"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "placement"}

    @staticmethod
    def available() -> bool:
        """Returns whether DALI is installed; if it is, it works on every CPU."""
        return has_dali()

    @property
    def device(self) -> Device:
        """The device that decodes images in this process. May initialise CUDA.

        Raises:
            DeviceError: There is none.
        """
        return resolve_device(self.image_decode_device)

    def make_handle(
        self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None
    ) -> MediaHandle:
        """Returns the handle of an image after screening its header: a DaliHandle if DALI may decode it.

        Raises:
            DecodeError: The screening refused the header.
        """
        spec = self.spec
        header = screen_image(raw, max_pixels=spec.max_pixels, max_bytes=spec.max_bytes)
        values = (name, raw, header.format, header.width, header.height, spec, header.orientation, seed, source)
        handle = DaliHandle(*values) if is_eligible_image(header, spec) else MediaHandle(*values)
        if spec.decode_scale != "exact" and not self._may_use_gpu() and is_left_to_pil(handle):
            handle = MediaHandle(*values)
        if spec.front_end is not None:
            check_layout(handle)
        return handle

    def import_libraries(self, placement: Placement, parts: Collection[str] | None = None) -> None:
        super().import_libraries(placement, parts)
        if placement == self.placement == "rank" and decodes_kind("image", parts):
            load_dali()

    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Starts to decode a block of handles and returns a future of one outcome per handle, in their order.

        Costs about 15 us per handle in the calling thread. On a GPU the values are for the CUDA stream that is current
        in the calling thread: that stream waits for them when the future's result is taken. The host does not wait.

        Returns:
            A future that fails only with DeviceFailedError or MemoryError, never because of bad data. The data of the
            handles must not change until it is done.

        Raises:
            DeviceError: A device that the options name is not there.
        """
        if self.placement == "worker":
            return super().submit_block(handles)
        return submit_block(self.engine_options, handles)

    def config(self) -> dict[str, Any]:
        """Returns the options as plain values."""
        return {**super().config(), "feed": self.feed, **asdict(self.engine_options)}

    def prepare_workers(self) -> None:
        if not isinstance(self.av_decode, VideoClips) or not self._decodes_clips_on_gpu() or self.placement != "rank":
            return
        self.nvdec = ask_nvdec(likely_gpu(self.video_decode_device))

    @property
    def finishes_in_worker(self) -> bool:
        return self.placement == "rank" and self._has_front_end

    def finish_in_worker(self, handle: MediaHandle, *, decodes: bool = True) -> MediaHandle:
        if handle.spec.front_end is None or isinstance(handle, (DaliHandle, DecodedHandle)):
            return handle  # the others were decoded when they were read
        try:
            if isinstance(handle, AudioHandle):
                if decodes:
                    handle.decoded, handle.data = handle.decode(), b""
                return handle
            if isinstance(handle, ClipsHandle):
                return self._settle_clips(handle, None, decodes=decodes)
            return _with_pixels(handle, decode_image(handle)) if decodes else handle
        except DecodeError:
            return handle

    def _finish_image(self, handle: MediaHandle) -> Any:
        in_rank = self.placement == "rank"
        if self.spec.front_end is not None:
            # Not decoded here, whatever decodes it: hooks before decoding see its size and its tokens.
            return handle
        if in_rank and isinstance(handle, DaliHandle) and self._prefers_dali(handle):
            return handle
        pixels = decode_image(handle)
        if not (in_rank and self._may_use_gpu() and self.spec.container == "torch"):
            return pixels
        return _with_pixels(handle, pixels)

    def _prefers_dali(self, handle: DaliHandle) -> bool:
        spec = self.spec
        if self.image_decode_device != "auto" or spec.operations or spec.dtype != "uint8":
            return True
        kind: Literal["cpu", "gpu"] = "gpu" if self._may_use_gpu() else "cpu"
        return prefers_dali_image(handle.format, handle.width, handle.height, kind)

    def _finish_clips(self, handle: ClipsHandle, file: MediaFile) -> Any:
        # With a front end not decoded here, whatever decodes it: hooks before decoding see its frames and its tokens.
        if handle.spec.front_end is not None or self.placement == "worker":
            return super()._finish_clips(handle, file)
        with file:
            handle = self._settle_clips(handle, file, decodes=True)
        return handle if handle.decoded is None or self._decodes_clips_on_gpu() else handle.decoded

    def _settle_clips(self, handle: ClipsHandle, file: MediaFile | None, *, decodes: bool) -> ClipsHandle:
        """Chooses the backend of a video in a worker, and decodes there what workers decode, and all audio.

        Args:
            handle: The video.
            file: The same file, if it is open.
            decodes: Whether it may be decoded.

        Returns:
            The video as it travels to the rank.

        Raises:
            DecodeError: It cannot be decoded.
        """
        from energon_dali.decode.pyav import decode_audio_of_clips

        if handle.decoded is not None:
            return handle
        where = self._video_device()
        candidate: ClipsHandle | None = handle
        if isinstance(handle.data, SparseMedia) and where.kind == "gpu":
            wanted = wanted_backends(handle, self.engine_options, where)
            candidate = excerpt_of(handle, file) if wanted else None
        backend = BACKENDS["pyav"]
        if candidate is not None:
            backend = choose_backend(candidate, self.engine_options, where, file if candidate is handle else None)
        in_worker = backend.runs_in_worker(where.kind)
        if decodes and in_worker:
            self._decode_clips(handle, file, backend)
        elif decodes and handle.sound is None and handle.spec.clip_audio is not None:
            handle.sound = decode_audio_of_clips(handle, file)
        if candidate is not None and candidate is not handle and not in_worker:
            candidate.sound, handle = handle.sound, candidate
        handle.backend = backend.name, where.kind
        return handle

    def _decode_clips(self, handle: ClipsHandle, file: MediaFile | None, backend: VideoBackend) -> None:
        """Decodes a video in a worker.

        Raises:
            DecodeError: It cannot be decoded.
        """
        from energon_dali.decode.pyav import decode_and_render

        if backend is BACKENDS["pyav"]:
            handle.decoded, handle.decoded_by = decode_and_render(handle, file), "pyav"
        else:
            assert isinstance(backend, FrameBackend), "only those decode in workers"
            outcome = backend.decode(handle, Device("cpu"))
            if isinstance(outcome, DecodeFailure):
                raise DecodeError(outcome.reason, outcome.format, outcome.route)
            handle.decoded, handle.decoded_by = outcome.value, outcome.route
        handle.data = b""

    def _decodes_clips_on_gpu(self) -> bool:
        return self.video_decode_device != "cpu" and sees_gpu()

    def _video_device(self) -> VideoDevice:
        """Returns where the rank decodes videos, as far as a worker, which must not touch a GPU, can find out."""
        if not self._decodes_clips_on_gpu():
            return VideoDevice("cpu")
        obstacle = library_obstacle() if self.nvdec is None else ""
        return VideoDevice("gpu", Nvdec({}, obstacle) if obstacle else self.nvdec)

    def _may_use_gpu(self) -> bool:
        return self.image_decode_device != "cpu" and sees_gpu()


def _with_pixels(handle: MediaHandle, pixels: Any) -> DecodedHandle:
    """Returns a handle with what a worker made of it.

    A worker must not touch the GPU, so it decodes, in parallel to other workers, and the rank moves the pixels.
    """
    values = {field.name: getattr(handle, field.name) for field in fields(MediaHandle)}
    return DecodedHandle(**{**values, "data": b""}, pixels=pixels)
