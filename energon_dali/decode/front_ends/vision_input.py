"""What a decoder with a front end makes of an image, and how several become a model's input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.front_ends.front_end import FrontEnd
    from energon_dali.decode.front_ends.layout import ImageLayout, VideoLayout
    from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd


@dataclass(eq=False)
class VisionInput:
    """One image as a model takes it, kept as bytes: a fraction of the values, to which `batch_vision` converts them."""

    pixels: torch.Tensor
    """Bytes of the patches or tiles, resampled and cut but not converted: uint8[rows, a, b], one of whose axes is the
    channel. Families that make something else of bytes keep the values themselves."""
    layout: ImageLayout
    """Size of the image, views, grid and number of tokens."""
    front_end: FrontEnd
    """What made it; one object for all images of a decoder within a process."""

    @property
    def values(self) -> torch.Tensor:
        """Patches or tiles in the front end's dtype, converted now; the front end's class says their shape."""
        return self.front_end.finish(self.pixels, self.layout)

    @property
    def rows(self) -> int:
        """Number of patches or tiles: the length of `values`."""
        return len(self.pixels)

    @property
    def num_tokens(self) -> int:
        """Tokens of this image in the text, as the processor counts them: its features and the markers around them."""
        return self.layout.num_tokens

    def __repr__(self) -> str:
        return (
            f"VisionInput({self.front_end.family}: {self.layout.width}x{self.layout.height} -> "
            f"{list(self.front_end.values_shape(self.pixels, self.layout))} {self.front_end.dtype}, "
            f"{self.num_tokens} tokens)"
        )


@dataclass(eq=False, repr=False)
class VideoInput(VisionInput):
    """One video as a model takes it. Its `pixels` are the values."""

    layout: VideoLayout
    """Size and chosen frames of the video, views, grid and number of tokens."""
    front_end: VideoFrontEnd
    """What made it."""
    timestamps: tuple[float, ...] = ()
    """When each chosen frame is shown, in seconds, as the file says."""

    def __repr__(self) -> str:
        return (
            f"VideoInput({self.front_end.family}: {self.layout.width}x{self.layout.height}, "
            f"{len(self.layout.frames)} of {self.layout.total_frames} frames -> "
            f"{list(self.pixels.shape)} {self.front_end.dtype}, {self.num_tokens} tokens)"
        )


def batch_vision(inputs: Iterable[Any], *, for_model: bool = False) -> dict[str, Any]:
    """Returns several images or videos as a processor returns them: its keys, shapes and dtypes.

    Args:
        inputs: What the decoder gave for each image, in the order of the text's placeholders; or one list of these per
            sample, which may be empty. Some families keep samples apart (Idefics3, Mllama): to them, as to their
            processors, images without such lists are one sample.
        for_model: Keeps only what the model's `forward` takes.

    Returns:
        A dict such as {"pixel_values": ..., "image_grid_thw": ...}; empty without inputs.

    Raises:
        ConfigError: Something else was given, or the inputs come from different front ends.
    """
    samples: list[Sequence[Any]] = []
    given = list(inputs)
    nested = bool(given) and all(isinstance(entry, (list, tuple)) for entry in given)
    samples = given if nested else [given]
    batch: dict[str, Any] = {}
    kinds: dict[type, list[list[Any]]] = {}
    for number, sample in enumerate(samples):
        for entry in sample:
            if not hasattr(entry, "front_end"):
                raise ConfigError(
                    f"batch_vision was given a {type(entry).__name__}. It takes what a decoder with front_end=... made "
                    "of images and videos. Give the decoder a front end, or stack plain tensors yourself."
                )
            rows = kinds.setdefault(type(entry), [[] for _ in samples])
            rows[number].append(entry)
    for rows in kinds.values():
        entries = [entry for row in rows for entry in row]
        front_end = entries[0].front_end
        for entry in entries:
            if entry.front_end is not front_end and not front_end.batches_with(entry.front_end):
                raise ConfigError(
                    f"batch_vision was given inputs of different front ends: {front_end!r} and {entry.front_end!r}. A "
                    "model takes those of one. Use the same front end for all datasets of a blend."
                )
        made: Mapping[str, Any] = front_end.collate(rows)
        chosen = {key: made[key] for key in front_end.model_keys if key in made} if for_model else dict(made)
        _merge(batch, chosen, samples)
    return batch


def _merge(batch: dict[str, Any], made: dict[str, Any], samples: Sequence[Sequence[Any]]) -> None:
    """Adds what one kind of inputs became; values that images and videos share are put in the order of the text."""
    shared = batch.keys() & made.keys()
    if "pixel_values" in shared:
        import torch

        made["pixel_values"] = torch.cat([entry.values for sample in samples for entry in sample])
    batch.update(made)
