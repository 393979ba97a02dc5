"""What a front end makes of an image of a given size, as integers: computed from the header, before any decoding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from energon_dali.decode.front_ends.resampling import Filter

IMAGE = -1
"""`View.source` of a view that is resampled from the decoded image."""


@dataclass(frozen=True, slots=True)
class View:
    """A rectangle of the image, resampled once, placed on a canvas, and cut into tiles of one size.

    All views of a layout come from one decode. Sizes are in pixels.
    """

    height: int
    """Height after resampling."""
    width: int
    """Width after resampling."""
    box: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) of the source that is resampled, right and bottom exclusive; None is all of it. The
    filter reads nothing outside it."""
    source: int = IMAGE
    """What is resampled: `IMAGE`, or the index of an earlier view of the layout, which includes its canvas."""
    canvas: tuple[int, int] | None = None
    """(height, width) of the canvas; None is the size of the view."""
    position: tuple[int, int] = (0, 0)
    """(top, left) of the view on its canvas. What does not fit is cut off, so both may be negative."""
    fill: tuple[int, int, int] | None = None
    """Bytes around the view on its canvas; None takes those of the front end."""
    tile: tuple[int, int] | None = None
    """(height, width) of the tiles that the canvas is cut into, row by row; None is one tile, the canvas. The canvas is
    a whole number of tiles."""
    filter: Filter | None = None
    """The filter of this resampling; None is that of the front end."""
    widened: bool = True
    """Whether the filter is widened where pixels shrink."""
    emitted: bool = True
    """Whether the view is part of the result; False if other views are only resampled from it."""

    @property
    def canvas_size(self) -> tuple[int, int]:
        """(height, width) of the canvas."""
        return self.canvas or (self.height, self.width)

    @property
    def tile_size(self) -> tuple[int, int]:
        """(height, width) of a tile."""
        return self.tile or self.canvas_size

    @property
    def num_tiles(self) -> int:
        """Tiles of this view in the result."""
        (height, width), (tile_height, tile_width) = self.canvas_size, self.tile_size
        return (height // tile_height) * (width // tile_width) if self.emitted else 0


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The views of one image, and what follows from its size."""

    height: int
    """Height of the image in pixels, as the front end sees it: after rotation and declared operations."""
    width: int
    """Width likewise."""
    views: tuple[View, ...]
    """In the order of the result."""
    num_tokens: int
    """Tokens of the image in the text, as the processor counts them: its features, and `num_markers`."""
    grid: tuple[int, ...] = ()
    """Integers of the family: the patch grid (frames, rows, columns), the tile grid (rows, columns), an index of an
    aspect ratio. The family's class says which."""
    num_markers: int = field(default=0, kw_only=True)
    """Those of `num_tokens` that are not features: tokens before, between and after them."""

    @property
    def num_features(self) -> int:
        """Placeholder tokens in the text after `expand_text`, one for each feature of the image."""
        return self.num_tokens - self.num_markers

    @property
    def num_tiles(self) -> int:
        """Tiles of all views in the result."""
        return sum(view.num_tiles for view in self.views)


@dataclass(frozen=True, slots=True)
class VideoLayout(ImageLayout):
    """What a video of a given size, length and frame rate becomes; each chosen frame has all views."""

    frames: tuple[int, ...] = (0,)
    """Numbers of the chosen frames, in presentation order, counted from 0."""
    total_frames: int = 1
    """Frames of the whole video."""
    fps: float = 1.0
    """Frames per second of the whole video, on average."""

    def with_tokens(self, num_tokens: int) -> VideoLayout:
        """Returns the same with another number of tokens.

        Args:
            num_tokens: Tokens of the video in the text.
        """
        return replace(self, num_tokens=num_tokens)

    @property
    def frame_seconds(self) -> tuple[float, ...]:
        """When each chosen frame is shown, in seconds, as processors assume: its number divided by the frame rate."""
        return tuple(frame / self.fps for frame in self.frames)

    @property
    def sampled_fps(self) -> float:
        """Chosen frames per second."""
        return len(self.frames) / self.total_frames * self.fps
