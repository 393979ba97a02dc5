"""What an image format is, and what the header of an image says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class ImageHeader:
    """Facts from an image's header, found without decoding a pixel."""

    format: str
    """`ImageFormat.name` ("jpeg", "png", ...), or PIL's name in lower case for a format without an `ImageFormat`."""
    width: int
    """Width in pixels as stored. For a TIFF as PIL returns it, because PIL applies the orientation itself."""
    height: int
    """Height in pixels, likewise."""
    channels: int = 3
    """Channels as stored, alpha included; 1 for a palette."""
    bit_depth: int = 8
    """Bits per channel."""
    has_alpha: bool = False
    """Whether the file carries transparency: an alpha channel, or a transparent colour or palette entry."""
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 if there is none, if it is out of range, or if PIL applies it while loading."""
    color: str = "rgb"
    """Colours as stored: "gray", "rgb", "ycc", "cmyk", "ycck", "palette"."""
    subsampling: str = ""
    """For a JPEG: "444", "422", "420", "411", "410", "440", "gray", or "other"; else ""."""
    progressive: bool = False
    """Whether a JPEG has several scans (SOF2)."""
    dali_decodable: bool = False
    """Whether DALI certainly accepts the file, its RGB equals PIL's, and nothing looks damaged. PIL decodes all others.

    DALI 2.4 crashes when a batch holds a file that its parser refuses, so this errs on the side of PIL."""

    def to_label(self) -> str:
        """Returns a short text for an index: "png", or "png rgb 8 0 1 whole" for a file that DALI may decode.

        The words after the format are the colours, the bits per channel, whether there is transparency, the EXIF
        orientation, and "whole": the file was checked for damage. Labels without that word do not promise this.
        """
        if not self.dali_decodable:
            return self.format
        return f"{self.format} {self.color} {self.bit_depth} {int(self.has_alpha)} {self.orientation} whole"

    @classmethod
    def from_label(cls, label: str, width: int, height: int) -> ImageHeader | None:
        """Returns the header that a label describes; None if the label does not say that DALI may decode the file.

        Args:
            label: What `to_label` returned.
            width: Width in pixels as stored.
            height: Height in pixels as stored.
        """
        words = label.split(" ")
        if len(words) != 6:
            return None
        format_, color, bits, alpha, orientation, _ = words
        return cls(
            format_,
            width,
            height,
            bit_depth=int(bits),
            has_alpha=alpha == "1",
            orientation=int(orientation),
            color=color,
            dali_decodable=True,
        )


class IrregularHeaderError(Exception):
    """A strict reader met something unusual or broken: PIL decides what the file is."""


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """An image format: its names and how its header is read. To add one, see `energon_dali.decode.formats`."""

    name: str
    """Name in headers, handles, statistics and messages, such as "jpeg"; an identifier in lower case."""
    pil_names: tuple[str, ...] = ()
    """PIL's names of the format in upper case, as in `PIL.Image.OPEN`. The first one opens it, without trying others.
    Empty: PIL cannot read it."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of part and file names in lower case, without a dot, that mean an image of this format."""
    signature: bytes = b""
    """Regular expression, without capturing groups, for the first bytes of a file; empty if the format has none."""
    pil_name_without_signature: str = ""
    """PIL's name of files of this format that do not begin with the signature; "" if there are none."""
    refused: bool = False
    """Whether files are refused although PIL recognises them."""
    read_header: Callable[[Buffer], ImageHeader] | None = None
    """Strict reader of the header of a file that begins with the signature. It decides `ImageHeader.dali_decodable`,
    and raises IrregularHeaderError, struct.error or IndexError for anything that it does not fully understand, and
    DecodeError for what no decoder should try. None leaves headers to PIL; DALI then never decodes the format."""
    is_whole: Callable[[Buffer], bool] | None = None
    """Returns whether nothing after the header looks damaged. Called for files that DALI may decode according to
    `read_header`. None if `read_header` checks this already."""
    reads_orientation: bool = False
    """Whether `ImageHeader.orientation` is known, or PIL applies it while loading. Otherwise PIL is asked for it."""
    open_reduced: Callable[[Buffer, int, int], Image.Image] | None = None
    """Returns an opened image that PIL will load at a smaller scale, and perhaps without its last rows. Arguments: the
    file, the divisor of both sides (1, 2, 4 or 8; sides are rounded up), and how many rows of the full size are needed
    from the top. Raises IrregularHeaderError if this file cannot be reduced. A file that PIL refuses at full size must
    be refused here too, or by `is_whole`, which is asked first. None: images are always decoded in full."""
    cuts_rows: bool = False
    """Whether `open_reduced` leaves out rows that are not needed."""
    reduced_shift: float = 0.0
    """Where the pixels of a reduced image are: pixel 0 covers the pixels up to `factor` of the full image (0), or its
    centre is that of pixel 0 of the full image (0.5; a result that reaches the last row or column then ends up to half
    a pixel of the reduced image too early)."""
    reduced_oversampling: float = 1.0
    """How many decoded pixels a reduced image needs for each one of a reduced JPEG, to look as close to the whole."""
    swaps_sides: Callable[[Image.Image], bool] | None = None
    """Returns whether PIL swaps width and height of an opened image when it loads the pixels. None: never."""
    max_pixels_per_byte: float | Mapping[object, float] = inf
    """Most pixels that one byte of a file can hold, at the fewest bits per pixel, or that by compression (PIL's
    `info["compression"]`; others have no bound). Applies to headers that PIL reads; `read_header` has closer bounds."""
    gpu_codec: bool = False
    """Whether DALI has a codec for it on the GPU. Otherwise CPU threads decode it in a GPU pipeline too."""

    def pixel_bound(self, compression: object) -> float:
        """Returns the most pixels per byte of a file with this compression; infinite if the format sets no bound."""
        bound = self.max_pixels_per_byte
        return bound.get(compression, inf) if isinstance(bound, Mapping) else bound
