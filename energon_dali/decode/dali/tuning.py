"""Settings of DALI that change speed and memory, and at most how values are rounded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from energon_dali.decode.dali.runtime.device import Device

_MOST = 2**31 - 1
"""DALI counts in 32 bits."""


@explain_call
@dataclass(frozen=True, slots=True, kw_only=True)
class DaliTuning:
    """Settings of DALI's decoders, most under DALI's own names. Only `runs_in_flight` has an effect on the CPU.

    The defaults are DALI's, except `jpeg_fancy_upsampling`. `python -m benchmarks.tuning --device gpu` measures the
    effect of each on a machine.

    Raises:
        ConfigError: A value is out of range.
    """

    hw_decoder_load: float = 0.65
    """Share of a run's JPEGs, 0 to 1, that the GPU's JPEG engine decodes, where there is one (A100, H100, H200). CUDA
    cores decode the rest, and all progressive files. Engine and cores round differently, and which of them gets a file
    depends on its block: with 0 or 1 a file has the same pixels in every block."""
    preallocate_width_hint: int = 0
    """Width in pixels of the largest image, for which the JPEG engine allocates memory once; 0 lets it grow. Cost:
    memory of the GPU for an image of that size."""
    preallocate_height_hint: int = 0
    """Height in pixels of the largest image, likewise. Cost: likewise."""
    device_memory_padding: int = 16 << 20
    """Bytes of GPU memory that each CPU thread of a pipeline allocates at the start. Cost: that much memory of the GPU
    per thread."""
    host_memory_padding: int = 8 << 20
    """Bytes of page-locked memory that each CPU thread of a pipeline allocates at the start, twice. Cost: twice that
    much memory per thread."""
    hybrid_huffman_threshold: int = 1_000_000
    """Smallest number of pixels for which an image that the JPEG engine does not take is entropy-decoded on the GPU
    instead of the CPU."""
    jpeg_fancy_upsampling: bool = True
    """Whether the chroma of JPEGs is interpolated, as on the CPU; DALI's default repeats pixels."""
    runs_in_flight: int = 2
    """Runs given to DALI at a time. With one, DALI waits while Python takes the outputs of the run before. Cost: memory
    for a run each."""

    copies_to_torch: bool = False
    """Whether results on a GPU are copied into memory of torch's allocator. Without the copy, DALI waits for the whole
    device when it frees the memory of a tensor that was dropped, which breaks a CUDA graph that is being captured
    (`torch.cuda.graph`, `torch.compile(mode="reduce-overhead")`). A decode process does without the copy. Cost: a copy
    within the memory of the GPU."""

    def __post_init__(self) -> None:
        if not isinstance(self.copies_to_torch, bool):
            raise ConfigError(f"copies_to_torch={self.copies_to_torch!r} is invalid: give True or False.")
        load = self.hw_decoder_load
        if not isinstance(load, (int, float)) or isinstance(load, bool) or not 0 <= load <= 1:
            raise ConfigError(
                f"hw_decoder_load={self.hw_decoder_load!r} is invalid: it must be a number from 0 (the JPEG engine is "
                "idle) to 1 (it decodes all that it can). Leave it out for DALI's 0.65."
            )
        for name, least in (
            ("preallocate_width_hint", 0),
            ("preallocate_height_hint", 0),
            ("device_memory_padding", 0),
            ("host_memory_padding", 0),
            ("hybrid_huffman_threshold", 0),
            ("runs_in_flight", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
                raise ConfigError(
                    f"{name}={value!r} is invalid: it must be a whole number from {least} to {_MOST}. Leave it out for "
                    "the default."
                )
        if self.runs_in_flight > 8:
            raise ConfigError(
                f"runs_in_flight={self.runs_in_flight} is more than 8. Each run holds a whole batch in memory, and two "
                "runs already keep DALI busy. Give 1 to 8."
            )

    def copies_to(self, device: Device) -> Device | None:
        """Returns the device on which results are copied into torch's memory; None if they are not copied."""
        return device if self.copies_to_torch and device.kind == "gpu" else None

    @property
    def image_decoder_options(self) -> dict[str, object]:
        """The arguments of `fn.decoders.image` on a GPU among these settings."""
        own = ("runs_in_flight", "copies_to_torch")
        return {name: value for name, value in asdict(self).items() if name not in own}
