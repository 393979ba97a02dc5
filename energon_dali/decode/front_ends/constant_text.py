"""Models in whose text every image has the same tokens: PaliGemma, Gemma 3n, Florence-2, BLIP-2 and Chameleon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import FixedSize
from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.layout import ImageLayout
from energon_dali.decode.front_ends.processor_config import ProcessorConfig


@dataclass(frozen=True, slots=True)
class TextRule:
    """How a processor writes an image, where its file does not say."""

    tokens: int | None
    """Features of an image; None if the processor fails without a number."""
    image_token: str
    """Placeholder of an image, and of each of its features."""
    start: str = ""
    """Token before the features."""
    end: str = ""
    """Token after them."""
    key: str = "image_seq_length"
    """Name of the number of features in the configuration of the processor around the image processor."""
    start_key: str = "image_start_token"
    """Name of the token before the features there."""
    end_key: str = "image_end_token"
    """Likewise."""
    blank_lines: bool = False
    """Whether an empty line is before and after an image."""


@dataclass(frozen=True, kw_only=True)
class ConstantText(FrontEnd):
    """An image whose tokens do not depend on its size."""

    tokens_per_image: int = 0
    """Features of an image; 0 if the processor is not known."""
    start_token: str = ""
    """Text before the features."""
    end_token: str = ""
    """Text after them."""
    blank_lines: bool = False
    """Whether an empty line is before and after an image. The processor does not count them, nor its markers then."""
    blank_line_tokens: int = 1
    """Tokens of an empty line in the tokenizer: 1 if it merges two line breaks."""

    @property
    def _markers(self) -> int:
        return bool(self.start_token) + bool(self.end_token)

    def counted(self, layout: ImageLayout) -> ImageLayout:
        """Returns a layout with the tokens of an image."""
        markers = 0 if self.blank_lines else self._markers
        return replace(layout, num_tokens=self.tokens_per_image + markers, num_markers=markers)

    def image_text(self, layout: ImageLayout) -> str:
        text = f"{self.start_token}{self.image_token * self.tokens_per_image}{self.end_token}"
        return f"\n\n{text}\n\n" if self.blank_lines else text

    def text_tokens(self, layout: ImageLayout) -> int:
        lines = 2 * self.blank_line_tokens if self.blank_lines else 0
        return self.tokens_per_image + self._markers + lines


def take_text(config: ProcessorConfig, rule: TextRule) -> dict[str, Any]:
    """Returns the fields of `ConstantText` for a processor.

    Args:
        config: Of the processor.
        rule: What the processor around it does where the configuration does not say.

    Raises:
        ConfigError: A value is invalid, or the number of tokens is missing.
    """
    default = 0
    if rule.key == "image_seq_length":
        default = config.take_integer("image_seq_length", rule.tokens or 0, least=0)
    tokens = config.outer_integer(rule.key, default or rule.tokens or 0)
    if not tokens and rule.tokens is None:
        raise config.error(
            f"it has no {rule.key}, without which {config.outer['processor_class']} cannot count the tokens of an image"
        )
    return {
        "tokens_per_image": tokens,
        "image_token": config.outer_text("image_token", rule.image_token),
        "start_token": config.outer_text(rule.start_key, rule.start) if rule.start else "",
        "end_token": config.outer_text(rule.end_key, rule.end) if rule.end else "",
        "blank_lines": rule.blank_lines,
        "blank_line_tokens": config.blank_line_tokens() if rule.blank_lines else 1,
    }


_TEXTS = {
    "Blip2Processor": TextRule(0, "<image>", key="num_query_tokens"),
    "ChameleonProcessor": TextRule(1024, "<image>", "<racm3:break>", "<eoss>"),
    "ColPaliProcessor": TextRule(None, "<image>"),
    "Florence2Processor": TextRule(None, "<image>"),
    "Gemma3nProcessor": TextRule(
        256,
        "<image_soft_token>",
        "<start_of_image>",
        "<end_of_image>",
        start_key="boi_token",
        end_key="eoi_token",
        blank_lines=True,
    ),
    "InstructBlipProcessor": TextRule(0, "<image>", key="num_query_tokens"),
    "PaliGemmaProcessor": TextRule(None, "<image>"),
}


@dataclass(frozen=True, kw_only=True)
class FixedText(ConstantText, FixedSize):
    """An image of one size with a constant number of tokens. Values: dtype[1, 3, height, width].

    What a processor writes elsewhere in the text is left to you: the `<bos>` after the images and the line break at the
    end (PaliGemma), the task prompts (Florence-2), the separator at the end (Chameleon), and an image at the beginning
    of texts that have no placeholder (BLIP-2, InstructBLIP).
    """

    family: ClassVar[str] = "fixed_text"
    around: ClassVar[tuple[str, ...]] = tuple(_TEXTS)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        made = super().from_config(config)
        return made.with_fields(**take_text(config, _TEXTS[config.outer["processor_class"]]))

    def layout(self, width: int, height: int) -> ImageLayout:
        return self.counted(super().layout(width, height))
