"""A handler of video and audio parts for webdataset's decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from energon_dali.av.container import translated_errors
from energon_dali.av.decoder import AVData, AVDecoder
from energon_dali.av.media_source import MemoryReader
from energon_dali.av.mp4_screen import screen_mp4
from energon_dali.demuxers import AV_SUFFIXES, open_container
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from av.container import InputContainer


class AVWebdatasetDecoder:
    """Returns an AVDecoder, the decoded file, or PyAV's container for a part; None if it is neither video nor audio.

    Args:
        video_decode_audio: With "torch", whether the audio of a video is decoded too.
        av_decode: "AVDecoder" (nothing is decoded yet), "torch" (`AVData` of the whole file) or "pyav" (an open
            `av.container.InputContainer`).
        **options: Options of `AVDecoder`.

    Raises:
        ConfigError: `av_decode` is unknown.
    """

    def __init__(
        self, video_decode_audio: bool, av_decode: Literal["torch", "AVDecoder", "pyav"] = "AVDecoder", **options: Any
    ) -> None:
        if av_decode not in ("torch", "AVDecoder", "pyav"):
            raise ConfigError(f'av_decode={av_decode!r} is unknown. Choose "AVDecoder", "torch" or "pyav".')
        self.video_decode_audio = video_decode_audio
        self.av_decode = av_decode
        self.options = options

    def read_av_data(self, data: bytes | memoryview) -> AVDecoder:
        """Returns the decoder of a file, which is not opened yet."""
        return AVDecoder(data, **self.options)

    def __call__(self, key: str, data: bytes | memoryview) -> AVDecoder | AVData | InputContainer | None:
        """Returns what a part becomes; None if by its name it is neither video nor audio.

        Args:
            key: Part name or file name ("mp4", "left.mp4").
            data: Its content; the result may keep a view of it.

        Raises:
            DecodeError: The file cannot be opened, or decoded within the limits.
        """
        if key.rpartition(".")[2].lower() not in AV_SUFFIXES:
            return None
        decoder = self.read_av_data(data)
        if self.av_decode == "AVDecoder":
            return decoder
        if self.av_decode == "pyav":
            view = memoryview(data).cast("B")
            screen_mp4(view)
            with translated_errors():
                return open_container(MemoryReader(view))
        with decoder:
            return decoder.get_frames(self.video_decode_audio)
