"""How little of an encoded image a result needs: a smaller scale, and only the rows above the end of its box.

JPEG and JPEG 2000 can be decoded at 1/2, 1/4 and 1/8 of their size in less time than at full size. How far a result may
be made from such a smaller image is the decoder's option `decode_scale`. Rows below the box are never decoded where the
format allows that: this does not change the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from energon_dali.decode.formats import FORMATS
from energon_dali.decode.front_ends.layout import IMAGE
from energon_dali.decode.geometry import Geometry, handle_geometry, upright_size
from energon_dali.decode.spec import DecodeScale, EncodedImage

FACTORS = (8, 4, 2)
"""Scales at which images are decoded, as divisors of both sides, the largest first."""
_DECODED_PIXELS: dict[DecodeScale, float] = {"fast": 2.0, "fastest": 1.0}
"""Decoded pixels per pixel of the result that remain, in each direction; more in formats that need it."""
_MARGIN = 2
"""Rows below the box that are decoded too: interpolated chroma reads one."""
_WORTHWHILE = 8
"""Rows are cut if they are at least one in this many: looking for damage first takes time too."""
_REVERSED = {2: "x", 3: "xy", 4: "y", 5: "", 6: "x", 7: "xy", 8: "y"}
"""The axes of an upright image that run against the stored ones, by EXIF orientation."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The part of an image that is decoded, and at what scale."""

    factor: int
    """Divisor of both sides, which are rounded up: 1, 2, 4 or 8."""
    rows: int
    """Rows that are needed at least, from the top of the stored image, in pixels of full size."""

    def geometry(self, handle: EncodedImage, geometry: Geometry | None) -> Geometry:
        """Returns the geometry in pixels of the reduced image, turned upright if the spec asks for it.

        Args:
            handle: The image.
            geometry: In pixels of the full image; None is all of it.
        """
        height, width = upright_size(handle)
        # The last pixels of the reduced image stand for less than `factor` pixels where a side is not a multiple.
        spare_y, spare_x = -height % self.factor, -width % self.factor
        if geometry is None:
            geometry = Geometry.whole(height, width)
        if self.factor == 1:
            return geometry
        reversed_axes = _REVERSED.get(handle.orientation, "") if handle.spec.apply_exif_orientation else ""
        shift = FORMATS[handle.format].reduced_shift * (self.factor - 1)
        return geometry.reduced(
            self.factor,
            shift + (spare_y if "y" in reversed_axes else 0),
            shift + (spare_x if "x" in reversed_axes else 0),
            (-(-height // self.factor), -(-width // self.factor)),
        )


def find_reduction(handle: EncodedImage, geometry: Geometry | None) -> Reduction | None:
    """Returns how an image is decoded in part; None if all of it is decoded at full size.

    Args:
        handle: An image whose format has `ImageFormat.open_reduced`.
        geometry: `handle_geometry(handle)`.

    Raises:
        DecodeError: The front end refuses images of this size.
    """
    spec = handle.spec
    known = FORMATS[handle.format]
    turns = spec.apply_exif_orientation
    if (geometry is None and spec.front_end is None) or (turns and not known.reads_orientation):
        return None
    factor = 1
    wanted = _DECODED_PIXELS.get(spec.decode_scale)
    if wanted is not None:
        smallest = min(_source_pixels(handle, geometry))
        wanted *= known.reduced_oversampling
        factor = next((factor for factor in FACTORS if smallest >= wanted * factor), 1)
    rows = handle.height
    if known.cuts_rows and geometry is not None and (not turns or handle.orientation <= 2):
        top, _, height, _ = geometry.window
        needed = top + height + _MARGIN * factor
        if (rows - needed) * _WORTHWHILE >= rows:
            rows = needed
    return None if factor == 1 and rows == handle.height else Reduction(factor, rows)


def decoded_factor(handle: EncodedImage) -> int:
    """Returns by how much both sides of an image are divided when it is decoded, as far as its header says."""
    known = FORMATS.get(handle.format)
    if handle.spec.decode_scale == "exact" or known is None or known.open_reduced is None:
        return 1
    reduction = find_reduction(handle, handle_geometry(handle))
    return 1 if reduction is None else reduction.factor


def _source_pixels(handle: EncodedImage, geometry: Geometry | None) -> Iterator[float]:
    """Yields, for each resampling of the image, the pixels of the image per pixel of the result, both directions."""
    front_end = handle.spec.front_end
    if geometry is not None and (front_end is None or not geometry.box_is_window):
        yield geometry.height / geometry.out_height
        yield geometry.width / geometry.out_width
        return
    assert front_end is not None, "there is an operation or a front end"
    height, width = upright_size(handle)
    if geometry is None:
        layout, box_height, box_width = front_end.layout(width, height), float(height), float(width)
    else:  # the front end resamples the box itself
        layout = front_end.layout(geometry.out_width, geometry.out_height)
        box_height, box_width = geometry.height, geometry.width
    for view in layout.views:
        if view.source == IMAGE:
            left, top, right, bottom = view.box or (0, 0, layout.width, layout.height)
            yield (bottom - top) * box_height / (layout.height * view.height)
            yield (right - left) * box_width / (layout.width * view.width)
