"""The configuration of a Hugging Face image or video processor, from which front ends take their fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.pixel_values import Arithmetic, PixelValues
from energon_dali.decode.front_ends.resampling import FILTER_NAMES, PIL_FILTERS, Filter
from energon_dali.errors import ConfigError
from energon_dali.shards.documents.json_text import parse_json

_WITHOUT_EFFECT = frozenset(
    {
        "auto_map",
        "backend",
        "data_format",
        "default_to_square",  # `take_size` takes it where it has an effect
        "device",
        "disable_grouping",
        "feature_extractor_type",
        "image_processor_type",
        "image_seq_length",
        "input_data_format",
        "model_input_names",
        "model_valid_processing_keys",
        "processor_class",
        "return_tensors",
        "video_processor_type",
    }
)
"""Keys that do not change pixels: how the processor is called, stored or batched, and counts of tokens."""
_SOUND = frozenset(
    {
        "chunk_length",
        "dither",
        "feature_size",
        "fft_length",
        "fft_overdrive",
        "frame_length",
        "hop_length",
        "input_scale_factor",
        "max_frequency",
        "mel_floor",
        "min_frequency",
        "n_fft",
        "n_samples",
        "nb_max_frames",
        "padding_side",
        "padding_value",
        "per_bin_mean",
        "per_bin_stddev",
        "preemphasis",
        "preemphasis_htk_flavor",
        "return_attention_mask",
        "sampling_rate",
    }
)
"""Keys of feature extractors for audio, which models with audio (Qwen-Omni, Gemma 3n) have in the same file."""
CROP_AND_PAD = frozenset({"do_center_crop", "crop_size", "do_pad", "pad_size"})
"""Keys that every processor of transformers has as attributes, and that families which cut images themselves ignore."""
_FLAGS = ("do_", "default_to_square")
_BACKEND_SUFFIXES = ("Fast", "Pil")
_SIDES = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width", "min_pixels", "max_pixels")

LARGEST_SIDE = 8192
"""Most pixels of a side that a configuration may ask for. Models take a tenth of it; a typing error such as
size=2240000 would take gigabytes per image."""
LARGEST_AREA = 1 << 26
"""Most pixels that an image may be enlarged to."""
LARGEST_COUNT = 1 << 20
"""Most frames, tokens or patches."""
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6
"""Range of rescale_factor and image_std, within which no value of a byte is infinite."""
_LONGEST_SHOWN = 200
"""Characters of a value in a message."""


class ProcessorConfig:
    """The values of a processor. A family takes what it understands; `finish` refuses what is left.

    A flag that is null is off, as in transformers. Other values that are null are not given.

    Attributes:
        type_name: Name of the processor's class without the suffix of its backend, such as "Qwen2VLImageProcessor".
        outer: Values of the processor around it, which also has the text: patch_size, image_seq_length, and its class
            as processor_class. Empty if there is none.
        tokenizer: Of the processor around it, if that was given as an object.

    Raises:
        ConfigError: The name of the processor's class is not a text.
    """

    type_key: ClassVar[str] = "image_processor_type"
    """Key under which a configuration names the processor's class."""
    effect: ClassVar[str] = "pixels"
    """What values change, for messages."""
    decoded_media: ClassVar[str] = "images"
    """What the decoder gives instead, for messages."""
    other_media: ClassVar[frozenset[str]] = _SOUND
    """Keys of the processors of other media in the same file."""

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        outer: Mapping[str, Any] | None = None,
        arithmetic: Arithmetic = "pil",
        tokenizer: Any = None,
    ) -> None:
        self.type_name = given = self._class_name(values)
        self.tokenizer = tokenizer
        self._outer_nulls = frozenset(name for name, value in (outer or {}).items() if value is None)
        self.outer = {name: value for name, value in (outer or {}).items() if value is not None}
        if values.get("processor_class") is not None:
            self.outer.setdefault("processor_class", values["processor_class"])
        self.outer_text("processor_class", "")
        # Video processors have one backend.
        self.arithmetic: Arithmetic = "torch" if given.endswith("VideoProcessor") else arithmetic
        self._nulls = frozenset(name for name, value in values.items() if value is None)
        flags = {name: False for name in self._nulls if str(name).startswith(_FLAGS)}
        self._values = flags | {name: value for name, value in values.items() if value is not None}
        self._taken: set[str] = set()

    @staticmethod
    def _class_name(values: Mapping[str, Any]) -> str:
        """Returns the name of the processor's class without the suffix of its backend; "" if it is not given."""
        given = values.get("image_processor_type") or values.get("video_processor_type")
        if not isinstance(given, str):
            given = values.get("feature_extractor_type")  # files of before 2023
        given = given.replace("FeatureExtractor", "ImageProcessor") if isinstance(given, str) else ""
        for suffix in _BACKEND_SUFFIXES:
            given = given.removesuffix(suffix)
        return given

    @property
    def image_token_id(self) -> int | None:
        """Id of the features of an image in the tokenizer, if the processor or the model's folder has it."""
        return self._token_id("image")

    @property
    def audio_token_id(self) -> int | None:
        """Id of the audio placeholder in the tokenizer, likewise."""
        return self._token_id("audio")

    @property
    def video_token_id(self) -> int | None:
        """Id of the video placeholder in the tokenizer, likewise."""
        return self._token_id("video")

    @property
    def start_token_id(self) -> int | None:
        """Id of the token before the features of an image, likewise."""
        return self._token_id("boi")

    def _token_id(self, medium: str) -> int | None:
        given = [self.outer.get(f"{medium}_token_{name}") for name in ("id", "index")]
        return next((number for number in given if isinstance(number, int) and not isinstance(number, bool)), None)

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a value as it is, or the default if the configuration has none; a flag that is null is False."""
        self._taken.add(name)
        return self._values.get(name, default)

    def take_flag(self, name: str, default: bool) -> bool:
        """Returns a value that is true or false; if it is null, false, as transformers treats it.

        Raises:
            ConfigError: It is something else.
        """
        value = self.take(name, default and name not in self._nulls)
        if not isinstance(value, bool):
            raise self.invalid(name, value, "true or false")
        return value

    def take_integer(self, name: str, default: int, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
        """Returns a whole number.

        Args:
            name: Of the value.
            default: If the configuration does not have it.
            least: Smallest number that is allowed.
            most: Largest one.

        Raises:
            ConfigError: It is something else, or out of range.
        """
        return self._integer(name, self.take(name, default), least, most)

    def take_number(
        self, name: str, default: float, *, least: float = SMALLEST_FACTOR, most: float = LARGEST_FACTOR
    ) -> float:
        """Returns a number; the arguments and errors are those of `take_integer`."""
        return self._number(name, self.take(name, default), least, most)

    def outer_integer(self, name: str, default: int, *, least: int = 0, most: int = LARGEST_COUNT) -> int:
        """Returns a whole number of the processor around it; the arguments and errors are those of `take_integer`."""
        return self._integer(name, self.outer.get(name, default), least, most)

    def outer_number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Returns a number of the processor around it; the arguments and errors are those of `take_integer`."""
        return self._number(name, self.outer.get(name, default), least, most)

    def outer_flag(self, name: str, default: bool) -> bool:
        """Returns a value of the processor around it that is true or false, as `take_flag` does."""
        value = self.outer.get(name, default and name not in self._outer_nulls)
        if not isinstance(value, bool):
            raise self.invalid(name, value, "true or false")
        return value

    def outer_text(self, name: str, default: str) -> str:
        """Returns a text of the processor around it, such as a token.

        Raises:
            ConfigError: It is not a text, or empty.
        """
        value = self.outer.get(name, default)
        if not isinstance(value, str) or (name in self.outer and not value):
            raise self.invalid(name, value, "a text of at least one character")
        return value

    def outer_strategy(self) -> str | None:
        """Returns vision_feature_select_strategy of the processor around it, or None.

        Raises:
            ConfigError: It is not a text.
        """
        value = self.outer.get("vision_feature_select_strategy")
        if value is not None and not isinstance(value, str):
            raise self.invalid("vision_feature_select_strategy", value, '"default" or "full"')
        return value

    def blank_line_tokens(self) -> int:
        """Returns the number of tokens of an empty line: 1 for tokenizers that merge two line breaks, as most do."""
        if self.tokenizer is None:
            return 1
        return len(self.tokenizer("\n\n", add_special_tokens=False)["input_ids"])

    def take_size(
        self,
        name: str,
        default: Mapping[str, int] | None = None,
        *,
        square: bool = False,
        least: int = 1,
        most: int = LARGEST_SIDE,
    ) -> dict[str, int]:
        """Returns a size as a dict of the sides that are given, such as {"height": 384, "width": 384}.

        Args:
            name: Of the value.
            default: If the configuration does not have it.
            square: Whether one number is height and width; if not, it is the shortest edge. For "size" the default of
                default_to_square.
            least: Fewest pixels of a side.
            most: Most pixels of a side.

        Raises:
            ConfigError: It is not a size, or a side is out of range.
        """
        value = self.take(name, default)
        if name == "size":
            square = self.take_flag("default_to_square", square)
        given: Mapping[str, Any]
        if isinstance(value, Mapping) or hasattr(value, "items"):
            given = {side: length for side, length in value.items() if length is not None}
        elif is_integer(value):
            given = {"height": value, "width": value} if square else {"shortest_edge": value}
        elif isinstance(value, (list, tuple)) and len(value) == 2:
            given = {"height": value[0], "width": value[1]}
        else:
            raise self.invalid(name, value, "a size: a number of pixels, or an object such as {height, width}")
        for side, length in given.items():
            if side not in _SIDES or not is_integer(length) or not least <= length <= most:
                raise self.invalid(
                    name, value, f"a size: whole numbers between {least:,} and {most:,} named {', '.join(_SIDES)}"
                )
        return {side: int(length) for side, length in given.items()}

    def take_filter(self, default: Filter, name: str = "resample") -> Filter:
        """Returns a filter of the processor; if it is null, transformers' default, not the processor's.

        Args:
            default: If the configuration does not have it.
            name: Of the value.

        Raises:
            ConfigError: PIL has no such filter.
        """
        value = self.take(name, "bilinear" if name in self._nulls else default)
        if isinstance(value, str) and value in PIL_FILTERS:
            return value  # type: ignore[return-value]
        if not is_integer(value) or int(value) not in FILTER_NAMES:
            raise self.invalid(name, value, "the number of one of PIL's filters, 0 to 5")
        return FILTER_NAMES[int(value)]

    def take_values(
        self,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        rescale: bool = True,
        normalize: bool = True,
        factor: float = 1 / 255,
    ) -> PixelValues:
        """Returns what the processor makes of a byte: do_rescale, rescale_factor, do_normalize, image_mean, image_std.

        Args:
            mean: Default of image_mean.
            std: Default of image_std.
            rescale: Default of do_rescale.
            normalize: Default of do_normalize.
            factor: Default of rescale_factor.

        Raises:
            ConfigError: A value is not a number within its range, or there are not one or three of them.
        """
        factor = self.take_number("rescale_factor", factor)
        does_rescale, does_normalize = self.take_flag("do_rescale", rescale), self.take_flag("do_normalize", normalize)
        given_mean = self.take_triple("image_mean", mean, least=-LARGEST_FACTOR)
        given_std = self.take_triple("image_std", std, least=SMALLEST_FACTOR)
        return PixelValues(
            factor if does_rescale else None,
            given_mean if does_normalize else None,
            given_std if does_normalize else None,
            self.arithmetic,
        )

    def take_triple(self, name: str, default: tuple[float, ...], *, least: float) -> tuple[float, float, float]:
        """Returns three numbers, for red, green and blue; one number is used for all of them.

        Args:
            name: Of the value.
            default: If the configuration does not have it.
            least: Smallest number that is allowed.

        Raises:
            ConfigError: It is something else, or out of range.
        """
        value = self.take(name, default)
        several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        numbers = [finite_number(number) for number in value] if several else [finite_number(value)] * 3
        inside = [number for number in numbers if number is not None and least <= number <= LARGEST_FACTOR]
        if len(numbers) != 3 or len(inside) != 3:
            allowed = f"one number between {least:g} and {LARGEST_FACTOR:g}, or three for red, green and blue"
            raise self.invalid(name, value, allowed)
        red, green, blue = inside
        return red, green, blue

    def take_conversion(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        kind: Filter,
        *,
        rgb: bool | None = True,
        normalize: bool = True,
        factor: float = 1 / 255,
    ) -> dict[str, Any]:
        """Returns the fields values, filter and convert_rgb of a front end.

        Args:
            mean: Default of image_mean.
            std: Default of image_std.
            kind: Default of resample.
            rgb: Default of do_convert_rgb; None leaves the field out, for videos.
            normalize: Default of do_normalize.
            factor: Default of rescale_factor.

        Raises:
            ConfigError: A value is not supported.
        """
        values = self.take_values(mean=mean, std=std, normalize=normalize, factor=factor)
        fields: dict[str, Any] = {"values": values, "filter": self.take_filter(kind)}
        return fields if rgb is None else {**fields, "convert_rgb": self.take_flag("do_convert_rgb", rgb)}

    def take_texts(self, front_end: type, *names: str) -> dict[str, Any]:
        """Returns texts that a processor has under the names of fields, else the defaults of the fields.

        Args:
            front_end: Has the fields.
            *names: Of the fields.
        """
        return {name: self.outer_text(name, getattr(front_end, name)) for name in names}

    def take_pair(self, side: int, *, square: bool = False) -> tuple[int, int] | None:
        """Returns the (height, width) to which a processor resizes; None if it does not.

        Args:
            side: Default of both.
            square: Whether a single number stands for both.

        Raises:
            ConfigError: The size is something else.
        """
        pair = self.height_and_width("size", self.take_size("size", {"height": side, "width": side}, square=square))
        return pair if self.take_flag("do_resize", True) else None

    def height_and_width(self, name: str, size: Mapping[str, int]) -> tuple[int, int]:
        """Returns the (height, width) of a size.

        Args:
            name: Of the size, for the message.
            size: What `take_size` returned.

        Raises:
            ConfigError: It is something else.
        """
        if size.keys() != {"height", "width"}:
            raise self.error(f"{name}={size} is not a height and a width")
        return size["height"], size["width"]

    def take_square(self, name: str, default: int) -> int:
        """Returns the side of a size that must be a square.

        Args:
            name: Of the size.
            default: Its side if the configuration does not have it.

        Raises:
            ConfigError: It is not a square.
        """
        size = self.take_size(name, {"height": default, "width": default}, square=True)
        if size.keys() != {"height", "width"} or size["height"] != size["width"]:
            raise self.error(f"{name}={size} is not a square, which the processor needs")
        return size["height"]

    def take_around(self, *known: str) -> str | None:
        """Returns the class of the processor around an image processor; None if there is none.

        Args:
            *known: Classes whose text the front end supports.

        Raises:
            ConfigError: It is another class.
        """
        around: str | None = self.outer.get("processor_class")
        if around not in (None, *known):
            raise self.error(f"the text of processor_class={around} is not covered. Give its image_processor")
        return around

    def _integer(self, name: str, value: Any, least: int, most: int) -> int:
        if not is_integer(value) or not least <= value <= most:
            raise self.invalid(name, value, f"a whole number between {least:,} and {most:,}")
        return int(value)

    def _number(self, name: str, value: Any, least: float, most: float) -> float:
        number = finite_number(value)
        if number is None or not least <= number <= most:
            raise self.invalid(name, value, f"a number between {least:g} and {most:g}")
        return number

    def require(self, name: str, expected: Any, why: str) -> None:
        """Takes a value that must be as expected, or absent.

        Raises:
            ConfigError: It has another value, which would change pixels.
        """
        value = self.take(name, expected)
        if value != expected:
            raise self.error(f"{name}={shown(value)} is not supported: {why}. It must be {expected!r}")

    def require_pil(self, why: str) -> None:
        """Checks that the processor is not one of the torchvision backend.

        Args:
            why: What that does otherwise, for the message.

        Raises:
            ConfigError: It is.
        """
        if self.arithmetic != "pil":
            raise self.error(
                f"its torchvision backend is not supported: {why}. Give the processor of the PIL backend "
                '(AutoImageProcessor.from_pretrained(..., backend="pil")), or its folder'
            )

    @property
    def nulls(self) -> frozenset[str]:
        """Names of the values that are null."""
        return self._nulls

    @property
    def read(self) -> frozenset[str]:
        """Names of the values that were given and taken."""
        return frozenset(self._taken & self._values.keys() - self._nulls)

    def unread(self, unused: frozenset[str]) -> dict[str, Any]:
        """Returns the values that were not taken and may have an effect on pixels.

        Args:
            unused: Further keys without effect: those that the processor has as attributes, and does not read.
        """
        return {
            name: value
            for name, value in self._values.items()
            if name not in self._taken | self._nulls | unused | _WITHOUT_EFFECT | self.other_media
            and not str(name).startswith("_")
        }

    def under(self, type_name: str) -> Self:
        """Returns these values as those of another class of processors, without a processor around it."""
        own = ("image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class")
        values = {name: value for name, value in self._values.items() if name not in own}
        return type(self)({**values, self.type_key: type_name}, arithmetic=self.arithmetic)

    def finish(self, unused: frozenset[str]) -> None:
        """Checks that every value was taken or has no effect on pixels.

        Args:
            unused: As in `unread`.

        Raises:
            ConfigError: A value was not; the message names it.
        """
        left = self.unread(unused)
        if left:
            raise self.error(
                "It sets " + ", ".join(f"{name}={shown(value)}" for name, value in left.items()) + ", which this front "
                f"end does not know. Values that could change {self.effect} are not ignored"
            )

    def invalid(self, name: str, value: Any, allowed: str) -> ConfigError:
        """Returns the error for a value that is not allowed.

        Args:
            name: Of the value.
            value: What was given.
            allowed: What it must be.
        """
        return self.error(f"{name}={shown(value)} is invalid: it must be {allowed}")

    def error(self, problem: str) -> ConfigError:
        """Returns the error for this configuration."""
        return ConfigError(
            f"No front end can be made from this {self.type_name or 'processor'}: {problem}. Change the value, or run "
            f"the processor in encode_sample on decoded {self.decoded_media}."
        )


def read_json_object(path: Path, advice: str) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Args:
        path: Of the file.
        advice: Sentence that says which file to give, for messages.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}. {advice}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, not an object. {advice}")
    return values


def shown(value: object) -> str:
    """Returns a value as messages show it, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no number of more than 4,300 digits
        return "(a number too long to print)"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def is_integer(value: object) -> bool:
    """Returns whether a value is a whole number, which true and false are not."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def finite_number(value: object) -> float | None:
    """Returns a number as a float; None if it is not a number, or not finite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None
