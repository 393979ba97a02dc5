"""The options that all decoders share, and the choice of how each part is decoded."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from energon_dali.calls import check_switches, explain_call
from energon_dali.decode.audio_front_ends import AudioFrontEnd
from energon_dali.decode.audio_front_ends.audio_handle import AudioHandle, AudioSegments, AudioSpec
from energon_dali.decode.basic import PLAIN_READERS, decode_basic, gunzip
from energon_dali.decode.clips import ClipsHandle, VideoClips
from energon_dali.decode.front_ends import FrontEnd
from energon_dali.decode.images import decode_image, import_readers, screen_image
from energon_dali.decode.interface import Decoded, DecodeFailure, Decoder, MediaHandle, Outcome, Placement, map_handles
from energon_dali.decode.operations import Operation
from energon_dali.decode.part_kind import decodes_kind, find_part_kind, guess_part_kind, require_filetype
from energon_dali.decode.spec import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_PIXELS,
    AVDecode,
    DecodeScale,
    ImageDecode,
    ImageDtype,
    ImageSpec,
)
from energon_dali.demuxers import AUDIO_SUFFIXES
from energon_dali.errors import ConfigError, DecodeError
from energon_dali.samples.base import SourceInfo

if TYPE_CHECKING:
    from energon_dali.av import AVLimits, MediaFile
    from energon_dali.av.media_index import MediaIndex
    from energon_dali.av.sparse_media import SparseMedia


class _Call(threading.local):
    """The part for which a pipeline called `decode` in this thread."""

    part: tuple[Callable[[str], int], SourceInfo | None] | None = None
    """(function from part name to seed, origin of the part); None outside of pipelines."""


_CALL = _Call()


@contextmanager
def part_context(seed_of: Callable[[str], int], source: SourceInfo | None) -> Iterator[None]:
    """Makes decoders called inside the context draw their random operations from the seeds of a sample.

    Args:
        seed_of: Returns the seed of a part by its name.
        source: Where the parts came from, for messages.
    """
    outer, _CALL.part = _CALL.part, (seed_of, source)
    try:
        yield
    finally:
        _CALL.part = outer


def decode_parts(decoder: Decoder, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parts as a pipeline's worker makes them: decoded, or as media handles to be decoded later.

    Args:
        decoder: Decodes them.
        parts: Content of each part by name. Names that start with "__", and values that are not bytes, pass through.

    Raises:
        DecodeError: A part cannot be decoded; the message names it.
    """
    if type(decoder).__call__ is not Decoder.__call__:
        return decoder(parts)
    seed_of, source = _CALL.part or (_zero, None)
    return {
        name: value
        if name.startswith("__") or not isinstance(value, (bytes, bytearray, memoryview))
        else decoder.decode_part(name, bytes(value), seed=seed_of(name), source=source)
        for name, value in parts.items()
    }


def _zero(_: str) -> int:
    return 0


class DecoderOptions(TypedDict, total=False):
    """The keyword arguments of every decoder, documented in `MediaDecoder`."""

    image_decode: ImageDecode
    av_decode: AVDecode | VideoClips
    av_limits: AVLimits | None
    av_options: Mapping[str, Any] | None
    av_lazy: bool
    video_decode_audio: bool
    guess_content: bool
    operations: Sequence[Operation]
    image_dtype: ImageDtype | None
    image_layout: Literal["CHW", "HWC"] | None
    apply_exif_orientation: bool
    max_pixels: int
    max_bytes: int
    front_end: FrontEnd | None
    audio_front_end: AudioFrontEnd | None
    audio_segments: AudioSegments
    audio_seconds: float | None
    audio_of_videos: bool
    decode_scale: DecodeScale


class MediaDecoder(Decoder):
    """Base of all decoders: their common options, the choice of how to decode a part by its suffix, and PIL and PyAV.

    Args:
        image_decode: One of webdataset's 17 names, such as "torchrgb" (float32 [3, H, W] in 0..1), "torchrgb8" (uint8),
            "rgb8" (numpy uint8 [H, W, 3]) or "pil".
        av_decode: What video and audio parts become. "AVDecoder" decodes nothing until one of its methods is called.
            "torch" decodes the whole file to `AVData`. "pyav" returns PyAV's open container, which cannot travel
            between processes. `VideoClips` returns `Clips`, decoded before the hooks run. Cost: "AVDecoder" and "pyav"
            nothing before a method is called; "torch" the whole file; clips what they need.
        av_limits: Limits for decoding one video or audio part; None for the defaults of `AVLimits`.
        av_options: Other options of `AVDecoder`, for av_decode="AVDecoder" and "torch", such as {"missing": "empty",
            "sample_rate": 16000}.
        av_lazy: With av_decode="AVDecoder", files with a media index are not read before a method of the AVDecoder is
            called, which then reads what it needs: for hooks that want little of long videos. docs/video.md. Cost: from
            remote storage each call waits for its bytes, which nothing requests ahead.
        video_decode_audio: With av_decode="torch", whether the audio of a video is decoded too. Cost: decoding all of
            the audio.
        guess_content: Finds media by the content of each part (package `filetype`) instead of by its suffix. Cost:
            about 20 us per part.
        operations: Applied to each image inside the decoder, in this order. Cost: at most one resampling and one flip
            for all of them together.
        front_end: Makes of each image what a vision-language model takes, after all operations; the images become
            VisionInput. Hooks before decoding see handles that have their `num_tokens`. docs/vlm.md. Cost: rendering in
            the same pass; the batch takes the memory of the processor's output.
        audio_front_end: Makes of each recording (a video or audio part without video) what a model takes, whatever
            `av_decode` says; the recordings become AudioInput. Hooks before decoding see handles that have their
            `num_tokens`. docs/audio.md.
        audio_segments: Which part of a recording that is longer than a segment is used, with an audio front end:
            "first" its start, as the extractor does; "random" a segment drawn from (seed, sample, epoch); "all" all of
            its segments, of which the part becomes a list.
        audio_seconds: Longest segment in seconds; None for the longest recording that the audio front end takes.
        audio_of_videos: With an audio front end, makes of each part with video a dict of "video", what `av_decode`
            says, and "audio", the AudioInput of its audio, or None.
        decode_scale: How small a JPEG or JPEG 2000 image may be decoded where operations or the front end make it
            smaller: "exact" (at full size), "fast" (at least 2 decoded pixels for each pixel of the result, in both
            directions) or "fastest" (at least 1). Clips that PyAV makes smaller are converted faster with both. Cost:
            pixels that differ (docs/decode-scale.md), in less time.
        image_dtype: "uint8", "float32", "float16" or "bfloat16" instead of the dtype of `image_decode`. Cost: memory of
            1 (uint8), 2 (float16, bfloat16) or 4 bytes (float32) per value, in batches and between processes.
        image_layout: "CHW" or "HWC" instead of the layout of `image_decode`.
        apply_exif_orientation: Rotates and mirrors images upright according to their EXIF data. Energon does not.
        max_pixels: Largest width x height of an image. For WebP, TIFF and rare formats PIL's own guard
            (`PIL.Image.MAX_IMAGE_PIXELS`) applies as well.
        max_bytes: Largest encoded image, and largest content of a compressed part (.gz, .npz, .pth), in bytes.

    Raises:
        ConfigError: An option, or a combination of options, cannot work.
    """

    @explain_call
    def __init__(
        self,
        *,
        image_decode: ImageDecode = "torchrgb",
        av_decode: AVDecode | VideoClips = "AVDecoder",
        av_limits: AVLimits | None = None,
        av_options: Mapping[str, Any] | None = None,
        av_lazy: bool = False,
        video_decode_audio: bool = False,
        guess_content: bool = False,
        operations: Sequence[Operation] = (),
        image_dtype: ImageDtype | None = None,
        image_layout: Literal["CHW", "HWC"] | None = None,
        apply_exif_orientation: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        front_end: FrontEnd | None = None,
        audio_front_end: AudioFrontEnd | None = None,
        audio_segments: AudioSegments = "first",
        audio_seconds: float | None = None,
        audio_of_videos: bool = False,
        decode_scale: DecodeScale = "exact",
    ) -> None:
        if not isinstance(av_decode, VideoClips) and av_decode not in get_args(AVDecode):
            raise ConfigError(
                f"av_decode={av_decode!r} is unknown. Video and audio parts become one of three things, or clips. "
                f"Choose one of {', '.join(get_args(AVDecode))}, or give VideoClips(...)."
            )
        if av_lazy and av_decode != "AVDecoder":
            raise ConfigError(
                f"av_lazy=True was given with av_decode={av_decode!r}, which decodes files at once. It is for "
                'av_decode="AVDecoder"; VideoClips reads only its clips without it. Leave it out.'
            )
        check_switches(
            av_lazy=av_lazy,
            video_decode_audio=video_decode_audio,
            guess_content=guess_content,
            audio_of_videos=audio_of_videos,
        )
        _check_limits(av_limits)
        if guess_content:
            require_filetype()
        self.spec = ImageSpec(
            image_decode,
            tuple(operations) if isinstance(operations, list) else operations,  # type: ignore[arg-type]
            image_dtype,
            image_layout,
            apply_exif_orientation,
            max_pixels,
            max_bytes,
            front_end,
            decode_scale,
        )
        if audio_front_end is None and (audio_segments != "first" or audio_seconds is not None or audio_of_videos):
            raise ConfigError(
                f"audio_segments={audio_segments!r}, audio_seconds={audio_seconds!r} and audio_of_videos="
                f"{audio_of_videos!r} were given without audio_front_end, which makes use of them. Give one, or leave "
                "them out."
            )
        self.audio_front_end = audio_front_end
        self.audio_segments = audio_segments
        self.audio_seconds = audio_seconds
        self.audio_of_videos = bool(audio_of_videos)
        self.audio_spec = None if audio_front_end is None else AudioSpec(audio_front_end, audio_segments, audio_seconds)
        self.av_decode = av_decode
        self.av_limits = av_limits
        self.av_options = _checked_options(av_options, av_decode)
        self.av_lazy = bool(av_lazy)
        self.video_decode_audio = video_decode_audio
        self.guess_content = guess_content

    @property
    def decodes_late(self) -> bool:  # type: ignore[override]
        """With a front end: hooks before decoding see handles with their number of tokens."""
        return self._has_front_end and self.placement == "worker"

    @property
    def _has_front_end(self) -> bool:
        clips = self.av_decode
        of_videos = isinstance(clips, VideoClips) and clips.front_end is not None
        return self.spec.front_end is not None or of_videos or self.audio_spec is not None

    def _finish_image(self, handle: MediaHandle) -> Any:
        """Returns what the worker makes of an image part: its pixels, or with a front end the handle itself.

        Raises:
            DecodeError: It cannot be decoded.
        """
        return decode_image(handle) if self.spec.front_end is None else handle

    def _finish_clips(self, handle: ClipsHandle, file: MediaFile) -> Any:
        """Returns what the worker makes of a video or audio part: its `Clips`, or with a front end the handle itself.

        Args:
            handle: The part, with its frames chosen.
            file: The same part, already open.

        Raises:
            DecodeError: It cannot be decoded.
        """
        from energon_dali.decode.pyav import decode_clips

        if handle.spec.front_end is not None:
            file.close()
            return handle
        return decode_clips(handle, file)

    def submit_block(self, handles: Sequence[MediaHandle]) -> Future[list[Outcome]]:
        """Decodes a block of handles in the calling thread and returns a completed future.

        Raises:
            MemoryError: There is not enough memory for an image.
        """
        future: Future[list[Outcome]] = Future()
        future.set_result([decode_on_cpu(handle) for handle in handles])
        return future

    def decode(self, fname: str, raw: bytes) -> Any:
        """Returns one part decoded on the CPU according to its file or part name, or the bytes if no handler takes it.

        A subclass may override it to decode formats of its own. Pipelines then call it for every part, in the workers.
        With DaliDecoder such a subclass decodes everything that it passes to `super().decode` on the CPU; override
        `stage` instead to leave images to DALI. In a pipeline random operations use the seed of the sample, otherwise
        seed 0.

        Raises:
            ConfigError: `raw` is text, such as a path.
            DecodeError: The part cannot be decoded; the message names it.
        """
        given: object = raw
        if isinstance(given, str):
            raise ConfigError(f"raw={given[:80]!r} is text. Give the content of the file as bytes.")
        seed_of, source = _CALL.part or (_zero, None)
        value = self.stage(fname, raw, seed=seed_of(fname), source=source)
        return map_handles(value, lambda handle: handle.decode())

    def import_libraries(self, placement: Placement, parts: Collection[str] | None = None) -> None:
        if placement == "rank":
            return
        if decodes_kind("image", parts):
            import_readers()
        # Where the parts are not known, only the options decide: PyAV takes longer to import than a batch of images.
        known = isinstance(self.av_decode, VideoClips) or self.audio_spec is not None
        if known if parts is None else decodes_kind("av", parts):
            from energon_dali.decode.pyav import import_pyav

            import_pyav()

    @property
    def overrides_decode(self) -> bool:
        return type(self).decode is not MediaDecoder.decode

    def plain_reader(self, name: str) -> Callable[[bytes], Any] | None:
        kind = type(self)
        if self.overrides_decode or self.guess_content or kind.stage is not MediaDecoder.stage:
            return None
        if kind.decode_part is not MediaDecoder.decode_part:
            return None
        found, suffix = find_part_kind(name)
        return PLAIN_READERS.get(suffix) if found == "basic" else None

    def decode_part(
        self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None
    ) -> Any:
        if not self.overrides_decode:
            return self.stage(name, raw, seed=seed, source=source)
        with part_context(lambda _: seed, source):
            return self.decode(name, bytes(raw))

    def stage(
        self,
        name: str,
        raw: bytes | memoryview | SparseMedia,
        *,
        seed: int = 0,
        source: SourceInfo | None = None,
    ) -> Any:
        """Returns what the worker makes of a part: a decoded value, or a MediaHandle to be decoded later.

        Args:
            name: Part name ("jpg", "left.png", "json.gz") or file name.
            raw: Content of the part; a sparse file where `takes_sparse` is True. A handle or an AVDecoder keeps a
                memoryview instead of a copy, so the memory must stay unchanged.
            seed: Seed of random operations, a function of (seed, sample, epoch, part).
            source: Where it came from, for messages.

        Raises:
            DecodeError: The part cannot be decoded, or its header was refused; the message names the part.
        """
        kind = find_part_kind(name)
        try:
            if not isinstance(raw, (bytes, bytearray, memoryview)):
                return self._stage_av(name, raw, seed, source)
            content = raw
            while kind[1] == "gz":
                content, name = gunzip(bytes(content), self.spec.max_bytes), name[:-3]
                kind = find_part_kind(name)
            if self.guess_content:
                kind = guess_part_kind(content, kind)
            if kind[0] == "image":
                return self._finish_image(self.make_handle(name, content, seed=seed, source=source))
            if kind[0] == "av":
                return self._stage_av(name, content, seed, source)
            return decode_basic(kind[1], bytes(content), self.spec.max_bytes, trusts_pickles=self.trusts_pickles)
        except DecodeError as error:
            raise DecodeError(f"Part {name!r}: {error.reason}", error.format, error.route) from error

    def _stage_av(self, name: str, raw: bytes | memoryview | SparseMedia, seed: int, source: SourceInfo | None) -> Any:
        # Only here: programs that read no video need not load PyAV.
        if self.audio_spec is None:
            return self._stage_clips(name, raw, seed, source)
        from energon_dali.decode.audio_front_ends.audio_decoding import stage_recording

        audio, has_video = stage_recording(
            name,
            raw,
            self.audio_spec,
            seed=seed,
            source=source,
            limits=self.av_limits,
            of_videos=self.audio_of_videos,
        )
        if not has_video:
            return audio
        video = self._stage_clips(name, raw, seed, source)
        return {"video": video, "audio": audio} if self.audio_of_videos else video

    def _stage_clips(
        self, name: str, raw: bytes | memoryview | SparseMedia, seed: int, source: SourceInfo | None
    ) -> Any:
        """Returns what `av_decode` says that a part becomes, or the handle of its clips."""
        from energon_dali.av import AVDecoder
        from energon_dali.decode.pyav import open_part, stage_clips

        if not isinstance(self.av_decode, VideoClips):
            options = {**self.av_options, "limits": self.av_limits}
            if not isinstance(raw, (bytes, bytearray, memoryview)):
                return AVDecoder(raw, **options)
            return open_part(raw, self.av_decode, self.video_decode_audio, options)
        handle, file = stage_clips(
            name,
            raw,
            self.av_decode,
            seed=seed,
            source=source,
            limits=self.av_limits,
            decode_scale=self.spec.decode_scale,
        )
        return self._finish_clips(handle, file)

    def takes_sparse(self, name: str) -> bool:
        """Returns whether a part is decoded from the bytes of chosen packets alone, if it has a stored index.

        Args:
            name: Name of the part.
        """
        clips, kind = self.av_decode, type(self)
        is_recording = self.audio_spec is not None and name.rpartition(".")[2].lower() in AUDIO_SUFFIXES
        damaged = clips.damaged if isinstance(clips, VideoClips) else self.av_options.get("damaged", "error")
        sparse = isinstance(clips, VideoClips) or self.av_lazy or is_recording
        if not sparse or damaged != "error" or self.guess_content:
            return False
        if self.overrides_decode or kind.stage is not MediaDecoder.stage:
            return False  # it expects bytes
        if kind.decode_part is not MediaDecoder.decode_part or kind.__call__ is not Decoder.__call__:
            return False
        return find_part_kind(name)[0] == "av"

    def choose_ranges(self, name: str, index: MediaIndex, seed: int) -> list[tuple[int, int]]:
        """Returns (offset, size) of the packets that are decoded of a part; none for AVDecoder, or if it will fail.

        Args:
            name: Name of the part; `takes_sparse` is True for it.
            index: The stored index of the part.
            seed: Seed of its random operations, as for `stage`.
        """
        ranges: list[tuple[int, int]] = []
        takes_audio = index.audio is not None and (index.video is None or self.audio_of_videos)
        if self.audio_spec is not None and takes_audio:
            from energon_dali.decode.audio_front_ends.audio_decoding import find_recording_packets

            ranges = find_recording_packets(name, index, self.audio_spec, seed=seed, limits=self.av_limits)
            if index.video is None:
                return ranges
        if not isinstance(self.av_decode, VideoClips):
            return ranges
        from energon_dali.decode.pyav import find_packets

        return ranges + find_packets(name, index, self.av_decode, seed=seed, limits=self.av_limits)

    def make_handle(
        self, name: str, raw: bytes | memoryview, *, seed: int = 0, source: SourceInfo | None = None
    ) -> MediaHandle:
        """Returns the handle of an image whose header was screened.

        Raises:
            DecodeError: The header was refused.
        """
        header = screen_image(raw, max_pixels=self.spec.max_pixels, max_bytes=self.spec.max_bytes, for_dali=False)
        handle = MediaHandle(
            name, raw, header.format, header.width, header.height, self.spec, header.orientation, seed, source
        )
        if self.spec.front_end is not None:
            check_layout(handle)
        return handle

    def config(self) -> dict[str, Any]:
        """Returns the options as plain values."""
        spec = self.spec
        return {
            "image_decode": spec.image_decode,
            "av_decode": _clips_config(self.av_decode) if isinstance(self.av_decode, VideoClips) else self.av_decode,
            "av_options": dict(self.av_options),
            "av_lazy": self.av_lazy,
            "av_limits": None if self.av_limits is None else asdict(self.av_limits),
            "video_decode_audio": self.video_decode_audio,
            "guess_content": self.guess_content,
            "operations": [{"type": type(op).__name__, **_plain(asdict(op))} for op in spec.operations],
            "image_dtype": spec.image_dtype,
            "image_layout": spec.image_layout,
            "apply_exif_orientation": spec.apply_exif_orientation,
            "max_pixels": spec.max_pixels,
            "max_bytes": spec.max_bytes,
            "front_end": None if spec.front_end is None else spec.front_end.config(),
            "audio_front_end": None if self.audio_front_end is None else self.audio_front_end.config(),
            "audio_segments": self.audio_segments,
            "audio_seconds": self.audio_seconds,
            "audio_of_videos": self.audio_of_videos,
            "decode_scale": spec.decode_scale,
        }

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.config().items())
        return f"{type(self).__name__}({options})"


def decode_on_cpu(handle: MediaHandle, bring: Callable[[Any], Any] | None = None) -> Outcome:
    """Returns the outcome of decoding any handle with PIL or PyAV in the calling thread.

    Args:
        handle: An image, clips or a recording.
        bring: Moves the pixels to their device; None leaves them on the CPU.
    """
    if isinstance(handle, ClipsHandle):
        from energon_dali.decode.pyav import decode_by_pyav  # images do without PyAV

        return decode_by_pyav(handle, bring)
    if isinstance(handle, AudioHandle):
        from energon_dali.decode.audio_front_ends.audio_decoding import decode_outcome

        return decode_outcome(handle)
    try:
        value = decode_image(handle)
        return Decoded(value if bring is None else bring(value), "pil")
    except DecodeError as error:
        return DecodeFailure(error.reason, error.format or handle.format, error.route or "pil", handle.source)


def options_of(decoder: MediaDecoder) -> dict[str, Any]:
    """Returns the keyword arguments that make a decoder like this one: those of `DecoderOptions` and of its own class.

    Args:
        decoder: Of any class, which keeps each keyword argument of its own in an attribute of the same name.
    """
    in_spec = {field.name for field in fields(ImageSpec) if field.init}
    options: dict[str, Any] = {}
    for kind in type(decoder).__mro__:
        parameters = inspect.signature(kind).parameters if "__init__" in vars(kind) and kind is not object else {}
        for name, parameter in parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                options[name] = getattr(decoder.spec if name in in_spec else decoder, name)
    options["av_options"] = options["av_options"] or None  # none were given: no other value fits every av_decode
    return options


def check_layout(handle: MediaHandle) -> None:
    """Checks, from the header, that a front end takes an image.

    Raises:
        DecodeError: It refuses images of this size, or would make more than `max_pixels` of it.
    """
    for view in handle.layout.views:
        height, width = view.canvas_size
        if max(view.height * view.width, height * width) > handle.spec.max_pixels:
            raise DecodeError(
                f"The front end resizes {handle.width} x {handle.height} pixels to {view.width} x {view.height}, more "
                f"than max_pixels={handle.spec.max_pixels:,}"
            )


def _check_limits(limits: object) -> None:
    """Refuses what is not an AVLimits.

    Raises:
        ConfigError: It is something else.
    """
    if limits is None:
        return
    from energon_dali.av import AVLimits

    if not isinstance(limits, AVLimits):
        raise ConfigError(f"av_limits={limits!r} is invalid. Give AVLimits(...), or leave it out.")


def _checked_options(options: Mapping[str, Any] | None, av_decode: object) -> dict[str, Any]:
    """Returns a copy of the options of AVDecoder.

    Raises:
        ConfigError: An option or its value is unknown to AVDecoder, or `av_decode` does not take options.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"av_options={options!r} is not a mapping. Give the options of AVDecoder by name, as a dict.")
    if av_decode not in ("AVDecoder", "torch"):
        raise ConfigError(
            f"av_options={dict(options)} were given with av_decode={av_decode!r}. They are options of AVDecoder, for "
            'av_decode="AVDecoder" and "torch". VideoClips has fields of its own; leave av_options out.'
        )
    from energon_dali.av import AVDecoder

    try:
        AVDecoder(b"", **{**options, "limits": None})  # opens nothing
    except TypeError as error:
        raise ConfigError(
            f"av_options={dict(options)} cannot be given to AVDecoder: {error}. Give its keyword options, such as "
            "missing, damaged, apply_rotation, sample_rate and audio_channels; limits have av_limits."
        ) from error
    return dict(options)


def _clips_config(spec: VideoClips) -> dict[str, Any]:
    values = _plain(asdict(replace(spec, front_end=None)))
    if callable(spec.at):
        values["at"] = f"{spec.at.__module__}.{getattr(spec.at, '__qualname__', type(spec.at).__qualname__)}"
    del values["front_end"]
    front_end = {} if spec.front_end is None else {"front_end": spec.front_end.config()}
    return {"type": "VideoClips", **values, **front_end}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
