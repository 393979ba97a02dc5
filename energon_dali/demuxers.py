"""Opens media files with demuxers that read one file and nothing else.

FFmpeg selects the demuxer by content, not by the name of a part, and some of its demuxers open what the content names:
other files, network addresses, capture devices. So only the demuxers listed below are used, all data is read through
Python, and FFmpeg itself cannot open anything.

Demuxers of FFmpeg 8 and PyAV's wheels that are not in the list:

- They refer to other files or addresses: concat (ffconcat), hls, sdp, rtsp, rtp, sap, dash, imf, image2, vobsub, mlv,
  webm_dash_manifest, avisynth, vapoursynth, and svg_pipe. lavfi has filters that do. mov may refer to other files (data
  references); FFmpeg ignores these by default, and could not open them here.
- They read devices: alsa, fbdev, kmsgrab, oss, v4l2, x11grab.
- They hold neither video nor audio: subtitles, text (tty, bin, xbin, ffmetadata), scripts (sbg).
- They read formats of old games and consoles, which no known dataset uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    from av.container import InputContainer

AV_SUFFIXES = frozenset(
    {"aac", "avi", "flac", "flv", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "mpeg", "mpg", "ogg", "opus", "wav", "webm"}
)
"""Suffixes (in lower case) of video and audio: Energon's, and aac, m4a, m4v, mpeg, mpg, ogg and opus."""
AUDIO_SUFFIXES = frozenset({"aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"})
"""Those of files that have no video, as a rule."""

_VIDEO = (
    "asf",
    "asf_o",
    "avi",
    "dv",
    "film_cpk",
    "flic",
    "flv",
    "gxf",
    "ivf",
    "live_flv",
    "lxf",
    "matroska",
    "mov",
    "mpeg",
    "mpegts",
    "mxf",
    "nsv",
    "nut",
    "nuv",
    "ogg",
    "pva",
    "rm",
    "roq",
    "smk",
    "swf",
    "webm",
    "wtv",
    "yuv4mpegpipe",
)
"""Containers of video and audio."""
_VIDEO_STREAMS = (
    "apv",
    "av1",
    "avs2",
    "avs3",
    "cavsvideo",
    "dirac",
    "dnxhd",
    "evc",
    "h261",
    "h263",
    "h264",
    "hevc",
    "m4v",
    "mjpeg",
    "mjpeg_2000",
    "mpegvideo",
    "mpjpeg",
    "obu",
    "vc1",
    "vc1test",
    "vvc",
)
"""Video without a container."""
_AUDIO = (
    "aa",
    "aac",
    "ac3",
    "ac4",
    "aea",
    "aiff",
    "amr",
    "amrnb",
    "amrwb",
    "ape",
    "aptx",
    "aptx_hd",
    "ast",
    "au",
    "avr",
    "bonk",
    "caf",
    "codec2",
    "dsf",
    "dss",
    "dts",
    "dtshd",
    "eac3",
    "epaf",
    "flac",
    "g722",
    "g723_1",
    "g729",
    "gsm",
    "iamf",
    "iff",
    "ilbc",
    "ircam",
    "lc3",
    "loas",
    "mlp",
    "mmf",
    "mp3",
    "mpc",
    "mpc8",
    "nistsphere",
    "oma",
    "osq",
    "pvf",
    "qcp",
    "qoa",
    "rka",
    "rso",
    "sbc",
    "sds",
    "shn",
    "sln",
    "sox",
    "spdif",
    "tak",
    "truehd",
    "tta",
    "voc",
    "vqf",
    "w64",
    "wav",
    "wavarc",
    "wsd",
    "wv",
    "wve",
    "xwma",
)
"""Audio, with a container and without."""
_IMAGES = (
    "apng",
    "bmp_pipe",
    "cri_pipe",
    "dds_pipe",
    "dpx_pipe",
    "exr_pipe",
    "gem_pipe",
    "gif",
    "gif_pipe",
    "hdr_pipe",
    "ico",
    "j2k_pipe",
    "jpeg_pipe",
    "jpegls_pipe",
    "jpegxl_anim",
    "jpegxl_pipe",
    "jpegxs_pipe",
    "pam_pipe",
    "pbm_pipe",
    "pcx_pipe",
    "pfm_pipe",
    "pgm_pipe",
    "pgmyuv_pipe",
    "pgx_pipe",
    "phm_pipe",
    "photocd_pipe",
    "pictor_pipe",
    "png_pipe",
    "ppm_pipe",
    "psd_pipe",
    "qdraw_pipe",
    "qoi_pipe",
    "sgi_pipe",
    "sunrast_pipe",
    "tiff_pipe",
    "webp_pipe",
    "xbm_pipe",
    "xpm_pipe",
    "xwd_pipe",
)
"""Images and animations, which some datasets store with the suffix of a video."""
DEMUXERS = frozenset((*_VIDEO, *_VIDEO_STREAMS, *_AUDIO, *_IMAGES))
"""FFmpeg's names of the demuxers that may be used."""

_OPTIONS = {"format_whitelist": ",".join(sorted(DEMUXERS)), "protocol_whitelist": "none"}


def tag_options() -> dict[str, Any]:
    """Returns the options of `av.open` with which tags that are not UTF-8 do not fail a file; PyAV 19 needs none."""
    import av

    return {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}


def open_container(reader: Any, options: dict[str, str] | None = None, **settings: Any) -> InputContainer:
    """Returns PyAV's container of a media file.

    Args:
        reader: The file: an object with read, seek and tell, at its start. Not a path, so that FFmpeg opens nothing
            itself.
        options: Options of FFmpeg.
        **settings: Further arguments of `av.open`.

    Raises:
        DecodeError: The format is not one of `DEMUXERS`, or the header is damaged.
        FFmpegError: FFmpeg does not recognise the format, or cannot read it.
    """
    import av

    assert not isinstance(reader, str), "FFmpeg must not open paths"
    try:
        container: InputContainer = av.open(
            reader, "r", options={**_OPTIONS, **(options or {})}, **tag_options(), **settings
        )
    except av.error.ArgumentError as error:  # which FFmpeg raises for a format that is not in the list
        raise DecodeError(
            "Its format is not one that is read, or its header is damaged. Formats that refer to other files or to "
            "addresses (ffconcat, HLS and other playlists, SDP) are refused, because a dataset must not reach outside "
            "itself. Store the media itself",
            "",
            "pyav",
        ) from error
    return container
