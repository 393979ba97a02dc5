from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest

from energon_dali.av import ColourFacts, MediaFile, VideoReader
from energon_dali.av.colour import Matrix, find_colours
from energon_dali.errors import DecodeError
from tests.av.corpus import COLOURS, video_file
from tests.av.full_decode import decode_fully
from tests.av.ycbcr import to_rgb
from tests.decode.sample_images import photograph

TOLERANCE = 3
"""Largest error of a channel compared with exact arithmetic: the converter, which PyAV and Energon use too, rounds its
coefficients and intermediate values. A wrong matrix or range is off by more than 9 somewhere."""
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4": ("libx264", {"qp": "0"}),
    "webm": ("libvpx-vp9", {"lossless": "1"}),
}
CASES: list[tuple[Matrix, bool]] = [
    (matrix, full)
    for matrix in ("bt601", "bt709", "bt2020")
    for full in (False, True)  # type: ignore[misc]
]

Values = np.ndarray[Any, Any]


def to_ycbcr(rgb: Values, matrix: Matrix, full: bool) -> Values:
    """Returns 8-bit YCbCr of RGB, by the equations of ITU-T H.273 written out: uint8 [..., 3]."""
    kr, kb = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}[matrix]
    red, green, blue = np.moveaxis(rgb / 255.0, -1, 0)
    luma = kr * red + (1 - kr - kb) * green + kb * blue
    cb, cr = (blue - luma) / (2 * (1 - kb)), (red - luma) / (2 * (1 - kr))
    scales = ((255, 0), (255, 128)) if full else ((219, 16), (224, 128))
    planes = [luma * scales[0][0] + scales[0][1], *(plane * scales[1][0] + scales[1][1] for plane in (cb, cr))]
    return np.rint(np.stack(planes, -1)).clip(0, 255).astype(np.uint8)


def encode(ycbcr: Values, container: str, matrix: str | int | None, full: bool) -> bytes:
    """Returns one frame, YCbCr uint8 [H, W, 3], losslessly encoded as 4:2:0 and tagged."""
    codec, options = ENCODERS[container]
    stream = io.BytesIO()
    height, width = ycbcr.shape[:2]
    with av.open(stream, "w", format=container) as file:
        video = file.add_stream(codec, rate=25, options=options)
        context = video.codec_context
        context.width, context.height, context.pix_fmt = width, height, "yuv420p"
        if matrix is not None:
            tags = (matrix, 2, 2) if isinstance(matrix, int) else COLOURS[matrix]
            context.colorspace, context.color_primaries, context.color_trc = tags
            context.color_range = 2 if full else 1
        planes = [ycbcr[..., 0], ycbcr[::2, ::2, 1], ycbcr[::2, ::2, 2]]
        joined = np.concatenate([plane.reshape(-1) for plane in planes]).reshape(-1, width)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(joined), format="yuv420p")
        frame.pts, frame.time_base = 0, Fraction(1, 25)
        for packet in [*video.encode(frame), *video.encode(None)]:
            file.mux(packet)
    return stream.getvalue()


def corners() -> Values:
    """Returns flat patches of 16 x 16 pixels: all corners of the RGB cube and levels between, uint8 [128, 128, 3]."""
    levels = np.array([0, 85, 170, 255])
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(8, 8, 3)
    return cube.repeat(16, 0).repeat(16, 1)


@pytest.mark.parametrize("container", ENCODERS)
@pytest.mark.parametrize(("matrix", "full"), CASES)
def test_saturated_colours_come_out_by_the_tags(container: str, matrix: Matrix, full: bool) -> None:
    ycbcr = to_ycbcr(corners(), matrix, full)
    centres = slice(8, None, 16)

    with MediaFile(encode(ycbcr, container, matrix, full)) as file:
        reader = VideoReader(file)
        assert reader.colours == ColourFacts(matrix, full)
        pictures = [reader.read([0])[0][centres, centres], reader.read([0], (64, 64))[0][4::8, 4::8]]

    wanted = to_rgb(ycbcr, matrix, full).clip(0, 255)[centres, centres]
    for picture in pictures:
        assert np.abs(picture - wanted).max() <= TOLERANCE
    for other in CASES:
        if other != (matrix, full):
            assert np.abs(to_rgb(ycbcr, *other).clip(0, 255)[centres, centres] - wanted).max() > 3 * TOLERANCE


@pytest.mark.parametrize(("matrix", "full"), CASES)
def test_photographs_come_out_by_the_tags(matrix: Matrix, full: bool) -> None:
    ycbcr = to_ycbcr(np.asarray(photograph("flower", (160, 96))), matrix, full)
    ycbcr[..., 1:] = ycbcr[::2, ::2, 1:].repeat(2, 0).repeat(2, 1)  # as 4:2:0 stores it

    with MediaFile(encode(ycbcr, "mp4", matrix, full)) as file:
        picture = VideoReader(file).read([0])[0]

    assert np.abs(picture - to_rgb(ycbcr, matrix, full).clip(0, 255)).max() <= TOLERANCE


def test_untagged_sd_is_what_pyav_gives_and_untagged_hd_is_bt709() -> None:
    for name, colourspace in (("colour-h264-untagged", 5), ("colour-h264-untagged-hd", 1)):
        with MediaFile(video_file(name)) as file:
            picture = VideoReader(file).read([0])[0]
        explicit = decode_fully(video_file(name), src_colorspace=colourspace).pictures[0]
        np.testing.assert_array_equal(picture, explicit)
    plain = decode_fully(video_file("colour-h264-untagged")).pictures[0]
    with MediaFile(video_file("colour-h264-untagged")) as file:
        np.testing.assert_array_equal(VideoReader(file).read([0])[0], plain)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ((2, 0, "yuv420p", 640, 480), ColourFacts("bt601", False)),
        ((2, 0, "yuv420p", 720, 576), ColourFacts("bt601", False)),
        ((2, 0, "yuv420p", 720, 577), ColourFacts("bt709", False)),
        ((2, 0, "yuv420p", 1280, 534), ColourFacts("bt709", False)),
        ((2, 0, "yuvj420p", 640, 480), ColourFacts("bt601", True)),
        ((1, 0, "yuv420p10le", 320, 240), ColourFacts("bt709", False)),
        ((6, 2, "yuv420p", 1920, 1080), ColourFacts("bt601", True)),
        ((10, 1, "yuv420p10le", 1920, 1080), ColourFacts("bt2020", False)),
        ((3, 0, "yuv420p", 640, 480), ColourFacts("bt601", False)),
        ((0, 0, "gbrp", 640, 480), ColourFacts("rgb", True)),
        ((0, 1, "yuv444p", 640, 480), ColourFacts("bt601", False)),
    ],
)
def test_the_rule(tags: tuple[int, int, str, int, int], found: ColourFacts) -> None:
    assert find_colours(*tags) == found


@pytest.mark.parametrize(("matrix", "name"), [(8, "YCgCo"), (12, "chromaticity-derived"), (14, "ICtCp")])
def test_a_matrix_that_cannot_be_converted_is_named(matrix: int, name: str) -> None:
    with MediaFile(encode(np.full((32, 32, 3), 128, np.uint8), "mp4", matrix, False)) as file:
        with pytest.raises(DecodeError, match=f"{name}.*BT.709"):
            VideoReader(file).read([0])
        with pytest.raises(DecodeError, match=name):
            _ = VideoReader(file).colours
