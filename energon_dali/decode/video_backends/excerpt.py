"""Makes a file of a video of which only some packets were read, for backends that take files."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from energon_dali.av.sparse_media import SparseMedia
from energon_dali.decode.clips import ClipsHandle

if TYPE_CHECKING:
    from energon_dali.av import MediaFile


def excerpt_of(handle: ClipsHandle, file: MediaFile | None = None) -> ClipsHandle | None:
    """Returns a video that has only the packets of the chosen frames, as a file; None if there is no such file.

    Its frames are renumbered from 0, and keep their timestamps.

    Args:
        handle: A video of which ranges were read.
        file: The same file, if it is already open; it stays open.

    Raises:
        DecodeError: The file changed since it was indexed.
    """
    from energon_dali.av import MediaFile, VideoReader
    from energon_dali.av.excerpt import CODEC_IDS, CONTAINERS, excerpt_frames, write_excerpt
    from energon_dali.decode.pyav import has_plain_packets

    media = handle.data
    if not isinstance(media, SparseMedia) or media.index.video is None or not handle.frame_indices.size:
        return None
    stream = media.index.video
    if handle.codec not in CODEC_IDS or CONTAINERS.isdisjoint(media.index.format.split(",")):
        return None
    with nullcontext(file) if file is not None else MediaFile(media, limits=handle.limits) as opened:
        reader = VideoReader(opened)
        if stream.frames is not reader.index or stream.facts.is_interlaced_mpeg4 or not has_plain_packets(reader.index):
            return None
        runs = reader.packets_of(handle.frame_indices)
    frames = excerpt_frames(stream, runs)
    return replace(
        handle,
        data=write_excerpt(media, stream, runs),
        format="matroska,webm",
        frame_indices=np.searchsorted(frames, handle.frame_indices),
        frame_count=len(frames),
        packets_are_frames=True,
    )
