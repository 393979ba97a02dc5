"""An encoded video on its way to the decode stage, with its chosen frames."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_dali.decode.clips.video_clips import Float64Array, VideoClips
from energon_dali.decode.front_ends import VideoInput, VideoLayout
from energon_dali.decode.interface import MediaHandle, Route
from energon_dali.decode.spec import BackendName, DecodeScale
from energon_dali.errors import ConfigError
from energon_dali.plan.rng import Int64Array
from energon_dali.samples.kinds import Clips

if TYPE_CHECKING:
    from energon_dali.av import AVLimits, MediaFile
    from energon_dali.av.colour import ColourFacts
    from energon_dali.av.sparse_media import SparseMedia
    from energon_dali.decode.video_backends.base import Kind


@dataclass(slots=True, eq=False, repr=False)
class ClipsHandle(MediaHandle):
    """An encoded video whose clips are chosen (by demuxing it) but not decoded; `format` is the container's ("mp4").

    `width` and `height` are those of the stored frames, before any rotation. Only `pyav.stage_clips` creates handles,
    so that every backend decodes the same frames.
    """

    data: bytes | bytearray | memoryview | SparseMedia  # type: ignore[assignment]
    """The encoded file, or its index with the bytes of the packets that the clips need."""
    spec: VideoClips  # type: ignore[assignment]
    """What to decode it to; one object shared by all handles of a decoder."""
    frame_indices: Int64Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64[clips, frames], the chosen frames, numbered in presentation order; [0, 0] for a file without video."""
    timestamps: Float64Array = field(default_factory=lambda: np.zeros((0, 0), np.float64))
    """float64[clips, frames], their presentation times in seconds."""
    starts: Float64Array = field(default_factory=lambda: np.zeros(0, np.float64))
    """float64[clips], when the audio of each clip starts, in seconds."""
    codec: str = ""
    """FFmpeg's name of the video codec ("h264", "hevc", "vp9", ...), "" for a file without video."""
    profile: str = ""
    """The codec's profile ("High 10"), "" if unknown."""
    pixel_format: str = ""
    """FFmpeg's name of the stored pixel format ("yuv420p10le")."""
    bit_depth: int = 8
    """Bits per component."""
    colour: ColourFacts | None = None
    """How the stored frames become RGB; None if not yet determined (`find_colour`)."""
    frame_count: int = 0
    """Frames of the whole video."""
    video_layout: VideoLayout | None = None
    """What the spec's front end makes of the video; None without a front end."""
    frames_to_decode: int = 0
    """Frames that a decoder must decode: from the keyframe before each chosen frame up to that frame."""
    packets_are_frames: bool = False
    """Whether a decoder may count packets: there is one video stream, each of its packets is one shown frame, and no
    frame is shown before the keyframe that precedes it in the file."""
    uniform_frames: bool | None = None
    """Whether the headers of all frames state the same size and pixel format, and that frames are shown whole; None if
    not yet determined."""
    constant_frames: bool | None = None
    """Likewise, of frames of which a part may be shown."""
    stored_rotation: int | None = None
    """Degrees by which the file wants its frames rotated counter-clockwise, whatever the spec asks for; None if not yet
    determined (`find_colour`)."""
    declared_matrix: int | None = None
    """AVColorSpace of the first frame as FFmpeg reports it; None if not yet determined (`find_colour`)."""
    stream_matrix: int | None = None
    """AVColorSpace that the packets alone declare, whatever the container says; None if not yet determined."""
    backend: tuple[BackendName, Kind] | None = None
    """The video backend that was chosen, and the kind of device for which it was; None if nobody chose yet."""
    rotation: int = 0
    """Degrees by which frames are rotated counter-clockwise if the spec asks for it: 0, 90, 180 or 270."""
    audio_codec: str = ""
    """FFmpeg's name of the audio codec if audio is wanted; else ""."""
    limits: AVLimits | None = None
    """Limits for decoding; None for the defaults."""
    decode_scale: DecodeScale = "exact"
    """How far PyAV's frames that become smaller may differ from an exact conversion."""
    decoded: Clips | VideoInput | None = None
    """The clips, or what the front end made of them, if that only has to be moved to a device; `data` is then empty."""
    decoded_by: Route = "pyav"
    """What decoded it, in that case."""
    sound: Clips | None = None
    """The clips with their audio and without frames, if a worker decoded it; None otherwise."""

    @property
    def layout(self) -> VideoLayout:
        """What the spec's front end makes of the video: chosen frames, views, grid, number of tokens.

        Raises:
            ConfigError: The spec has no front end.
        """
        if self.video_layout is None:
            raise ConfigError(
                "This video's VideoClips has no front end, so its layout and tokens are unknown. Give "
                "VideoClips(front_end=VideoFrontEnd.from_processor(...))."
            )
        return self.video_layout

    def decode(self) -> Any:
        """Returns the `Clips`, or what the front end makes of the video, decoded now with PyAV in the calling thread.

        Raises:
            DecodeError: The data cannot be decoded.
        """
        from energon_dali.decode.pyav import decode_and_render  # here, because pyav imports this class

        return decode_and_render(self)

    def find_colour(self, file: MediaFile | None = None) -> ColourFacts:
        """Returns how the stored frames become RGB, according to the first frame, which is decoded once per handle.

        The header is not enough: decoders set the colours of their frames, whatever the container says.

        Args:
            file: The same file, if it is already open; it stays open.

        Raises:
            DecodeError: No frame can be decoded.
        """
        if self.colour is None:
            from energon_dali.av import MediaFile, VideoReader

            with (
                nullcontext(file) if file is not None else MediaFile(self.data, limits=self.limits, threads=1) as opened
            ):
                reader = VideoReader(opened)
                self.colour, self.stored_rotation = reader.colours, reader.rotation
                self.declared_matrix = reader.declared_matrix
        return self.colour

    def __repr__(self) -> str:
        return (
            f"ClipsHandle({self.name}: {self.format} {self.codec or self.audio_codec} {self.width}x{self.height}, "
            f"frames {self.frame_indices.shape}, {len(self.data)} bytes)"
        )
