"""How DALI works, as opposed to what it makes: settings that change speed, memory, and rounding at most."""

from __future__ import annotations

from dataclasses import dataclass

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError

_MOST = 2**31 - 1
"""DALI counts in 32 bits."""


@explain_call
@dataclass(frozen=True, slots=True, kw_only=True)
class DaliTuning:
    """Settings of DALI's decoders under DALI's own names. All but `runs_in_flight` are of no meaning on the CPU.

    The defaults are DALI's, except `jpeg_fancy_upsampling`. `python -m benchmarks.tuning --device gpu` measures what
    each of them does on a machine.

    Raises:
        ConfigError: A value is out of range.
    """

    hw_decoder_load: float = 0.65
    """Share of the JPEGs of a run that the GPU's JPEG engine decodes, where there is one (A100, H100, H200); 0 to 1.
    Its cores decode the rest. Progressive files never go to the engine. Engine and cores round differently, and who
    gets a file depends on its block: 0 or 1 give a file the same pixels in every block."""
    preallocate_width_hint: int = 0
    """Width in pixels of the largest image, for which the JPEG engine takes memory once; 0 lets it grow."""
    preallocate_height_hint: int = 0
    """Height in pixels of the largest image, likewise."""
    device_memory_padding: int = 16 << 20
    """Bytes of GPU memory that each CPU thread of a pipeline begins with."""
    host_memory_padding: int = 8 << 20
    """Bytes of page-locked memory that each CPU thread of a pipeline begins with, twice."""
    hybrid_huffman_threshold: int = 1_000_000
    """Pixels from which an image that the engine does not take is entropy-decoded on the GPU and not on the CPU."""
    jpeg_fancy_upsampling: bool = True
    """Chroma of JPEGs is interpolated as on the CPU, where DALI's default repeats pixels."""
    runs_in_flight: int = 2
    """Runs given to DALI at a time: with one it waits while Python hands over the run before."""

    def __post_init__(self) -> None:
        load = self.hw_decoder_load
        if not isinstance(load, (int, float)) or isinstance(load, bool) or not 0 <= load <= 1:
            raise ConfigError(
                f"hw_decoder_load={self.hw_decoder_load!r} is no share. It is a number from 0 (the JPEG engine idles) "
                "to 1 (it takes all that it can). Leave it out for DALI's 0.65."
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
                    f"{name}={value!r} cannot work. It is a whole number from {least} to {_MOST}. Leave it out for the "
                    "default."
                )
        if self.runs_in_flight > 8:
            raise ConfigError(
                f"runs_in_flight={self.runs_in_flight} is more than 8. Each run holds a whole batch in memory, and a "
                "second one keeps DALI busy already. Give 1 to 8."
            )

    @property
    def image_decoder_options(self) -> dict[str, object]:
        """What `fn.decoders.image` on a GPU takes of these."""
        return {
            "hw_decoder_load": self.hw_decoder_load,
            "preallocate_width_hint": self.preallocate_width_hint,
            "preallocate_height_hint": self.preallocate_height_hint,
            "device_memory_padding": self.device_memory_padding,
            "host_memory_padding": self.host_memory_padding,
            "hybrid_huffman_threshold": self.hybrid_huffman_threshold,
            "jpeg_fancy_upsampling": self.jpeg_fancy_upsampling,
        }
