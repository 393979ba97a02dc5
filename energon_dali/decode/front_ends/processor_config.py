"""Reads the configuration of a Hugging Face image or video processor, from an object or a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energon_dali.decode.front_ends.pixel_values import Arithmetic, PixelValues
from energon_dali.decode.front_ends.resampling import FILTER_NAMES, PIL_FILTERS, Filter
from energon_dali.errors import ConfigError
from energon_dali.shards.documents.json_text import parse_json

_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_WITHOUT_EFFECT = frozenset(
    {
        "auto_map",
        "backend",
        "data_format",
        "device",
        "disable_grouping",
        "feature_extractor_type",
        "image_processor_type",
        "image_seq_length",
        "input_data_format",
        "model_input_names",
        "processor_class",
        "return_tensors",
        "video_processor_type",
    }
)
"""Keys that do not change pixels: how the processor is called, stored or batched, and counts of tokens."""
_BACKEND_SUFFIXES = ("Fast", "Pil")


class ProcessorConfig:
    """The values of a processor. A family takes what it understands; `finish` refuses what is left.

    Attributes:
        type_name: Name of the processor's class without the suffix of its backend, such as "Qwen2VLImageProcessor".
        outer: Values of the processor around it, which also knows the text: patch_size, image_seq_length, and its class
            as processor_class. Empty if there is none.
    """

    def __init__(
        self, values: Mapping[str, Any], *, outer: Mapping[str, Any] | None = None, arithmetic: Arithmetic = "pil"
    ) -> None:
        given = values.get("image_processor_type") or values.get("video_processor_type")
        if not isinstance(given, str):
            old = values.get("feature_extractor_type")  # files of before 2023
            given = old.replace("FeatureExtractor", "ImageProcessor") if isinstance(old, str) else ""
        for suffix in _BACKEND_SUFFIXES:
            given = given.removesuffix(suffix)
        self.type_name = given
        self.outer = dict(outer or {})
        if isinstance(values.get("processor_class"), str):
            self.outer.setdefault("processor_class", values["processor_class"])
        # Video processors have one backend.
        self.arithmetic: Arithmetic = "torch" if given.endswith("VideoProcessor") else arithmetic
        # A flag that is null is off. Other values that are null are not given.
        flags = {name: False for name, value in values.items() if value is None and name.startswith("do_")}
        self._values = flags | {name: value for name, value in values.items() if value is not None}
        self._taken: set[str] = set()

    @property
    def image_token_id(self) -> int | None:
        """Id of the image placeholder in the tokenizer, if the processor or the model's folder says it."""
        return self._token_id("image")

    @property
    def video_token_id(self) -> int | None:
        """Id of the video placeholder in the tokenizer, likewise."""
        return self._token_id("video")

    def _token_id(self, medium: str) -> int | None:
        given = [self.outer.get(f"{medium}_token_{name}") for name in ("id", "index")]
        return next((number for number in given if isinstance(number, int) and not isinstance(number, bool)), None)

    def take(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default if the configuration does not have it or it is null (a flag: False)."""
        self._taken.add(name)
        return self._values.get(name, default)

    def take_size(self, name: str, default: Mapping[str, int] | None = None, *, square: bool = False) -> dict[str, int]:
        """Returns a size as a dict of the sides that are given, such as {"height": 384, "width": 384}.

        Args:
            name: Of the value.
            default: If the configuration does not have it.
            square: Whether one number is height and width; if not, it is the shortest edge. For "size" the default of
                default_to_square.

        Raises:
            ConfigError: It is not a size.
        """
        value = self.take(name, default)
        if name == "size":
            square = bool(self.take("default_to_square", square))
        if isinstance(value, Mapping) or hasattr(value, "items"):
            sides = {side: int(length) for side, length in value.items() if length is not None}
        elif isinstance(value, int):
            sides = {"height": value, "width": value} if square else {"shortest_edge": value}
        elif isinstance(value, (list, tuple)) and len(value) == 2:
            sides = {"height": int(value[0]), "width": int(value[1])}
        else:
            raise self.error(f"{name}={value!r} is not a size")
        return sides

    def take_filter(self, default: Filter) -> Filter:
        """Returns the filter of the processor ("resample").

        Raises:
            ConfigError: PIL has no such filter.
        """
        value = self.take("resample", default)
        if isinstance(value, str) and value in PIL_FILTERS:
            return value  # type: ignore[return-value]
        try:
            return FILTER_NAMES[int(value)]
        except (KeyError, TypeError, ValueError):
            raise self.error(f"resample={value!r} is not one of PIL's filters, 0 to 5") from None

    def take_values(
        self,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        rescale: bool = True,
        normalize: bool = True,
    ) -> PixelValues:
        """Returns what the processor makes of a byte: do_rescale, rescale_factor, do_normalize, image_mean, image_std.

        Args:
            mean: Default of image_mean.
            std: Default of image_std.
            rescale: Default of do_rescale.
            normalize: Default of do_normalize.

        Raises:
            ConfigError: A value is not a number, or there are not one or three of them.
        """
        factor = float(self.take("rescale_factor", 1 / 255))
        does_rescale, does_normalize = self.take("do_rescale", rescale), self.take("do_normalize", normalize)
        given_mean, given_std = self._triple("image_mean", mean), self._triple("image_std", std)
        return PixelValues(
            factor if does_rescale else None,
            given_mean if does_normalize else None,
            given_std if does_normalize else None,
            self.arithmetic,
        )

    def _triple(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self.take(name, default)
        values = (value,) * 3 if isinstance(value, (int, float)) else tuple(value)
        if len(values) != 3 or not all(isinstance(number, (int, float)) for number in values):
            raise self.error(f"{name}={value!r} is not one number, or three for red, green and blue")
        return tuple(float(number) for number in values)

    def require(self, name: str, expected: Any, why: str) -> None:
        """Takes a value that must be as expected, or absent.

        Raises:
            ConfigError: It has another value, which would change pixels.
        """
        value = self.take(name, expected)
        if value != expected:
            raise self.error(f"{name}={value!r} is not supported: {why}. It must be {expected!r}")

    def finish(self) -> None:
        """Checks that every value was taken or has no effect on pixels.

        Raises:
            ConfigError: A value was not; the message names it.
        """
        left = {
            name: value
            for name, value in self._values.items()
            if name not in self._taken and name not in _WITHOUT_EFFECT and not name.startswith("_")
        }
        if left:
            raise self.error(
                "It sets " + ", ".join(f"{name}={value!r}" for name, value in left.items()) + ", which this front end "
                "does not know. Values that could change pixels are not ignored"
            )

    def error(self, problem: str) -> ConfigError:
        """Returns the error for this configuration."""
        return ConfigError(
            f"No front end can be made from this {self.type_name or 'processor'}: {problem}. Change the value, or run "
            "the processor in encode_sample on decoded images."
        )


def read_processor(processor: object) -> ProcessorConfig:
    """Returns the configuration of a processor.

    Args:
        processor: An image processor, video processor, or processor with an image processor; or the path of a folder
            that one was saved to, or of its JSON file. transformers is not needed for a path.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(processor, (str, Path)):
        return _read_folder(Path(processor))
    if isinstance(processor, Mapping):
        return _from_values(processor)
    inner = getattr(processor, "image_processor", None)
    return _from_object(processor, {}) if inner is None else _from_object(inner, _outer_values(processor))


def read_video_processor(processor: object) -> ProcessorConfig:
    """Returns the configuration of the video half of a processor.

    Args:
        processor: A video processor, or a processor with one; or the path of a folder that one was saved to, or of its
            JSON file. A folder from before there were video processors has one file for images and videos.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(processor, Mapping):
        return _from_video_values(processor)
    if not isinstance(processor, (str, Path)):
        inner = getattr(processor, "video_processor", None)
        return _from_object(processor, {}) if inner is None else _from_object(inner, _outer_values(processor))
    path = Path(processor)
    files = {name: _read_json(path / name) for name in _FILES if (path / name).is_file()}
    if not files:
        return _from_video_values(_read_json(_existing(path)))
    outer = {**_token_ids(path), **files.get("processor_config.json", {})}
    if isinstance(outer.get("video_processor"), Mapping):
        return _from_video_values(outer)
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        if name in files:
            return _from_video_values(files[name], outer)
    return _from_video_values(outer)


def _from_video_values(values: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> ProcessorConfig:
    inner = values.get("video_processor")
    if isinstance(inner, Mapping):  # processor_config.json holds the video processor inside
        outer, values = values, inner
    values = dict(values)
    image_type = values.pop("image_processor_type", None)
    if isinstance(image_type, str):
        values.setdefault("video_processor_type", image_type.replace("ImageProcessor", "VideoProcessor"))
    return ProcessorConfig(values, outer=outer)


def _outer_values(processor: object) -> dict[str, Any]:
    values: dict[str, Any] = {"processor_class": type(processor).__name__}
    values |= {name: value for name, value in vars(processor).items() if isinstance(value, (int, float, str, bool))}
    passed = getattr(processor, "images_kwargs", None)
    if isinstance(passed, Mapping):  # what it passes to its image processor, over that one's own values
        values["images_kwargs"] = dict(passed)
    ids = getattr(processor, "image_token_ids", None)  # that of a feature first, which Gemma 3's placeholder is not
    if isinstance(ids, list) and ids and isinstance(ids[0], int):
        values["image_token_id"] = ids[0]
    return values


def _from_object(processor: object, outer: Mapping[str, Any]) -> ProcessorConfig:
    to_dict = getattr(processor, "to_dict", None)
    if not callable(to_dict):
        raise ConfigError(
            f"{type(processor).__name__} is not a processor. Give a Hugging Face image processor or video processor, a "
            "processor that has one, or the folder it was saved to."
        )
    values = dict(to_dict())
    values.setdefault("image_processor_type", type(processor).__name__)
    backend = getattr(processor, "backend", "pil")
    return ProcessorConfig(values, outer=outer, arithmetic="torch" if backend == "torchvision" else "pil")


def _read_folder(path: Path) -> ProcessorConfig:
    if path.is_dir():
        found = [path / name for name in _FILES if (path / name).is_file()]
        values = _read_json(found[0] if found else _existing(path))
        outer = next((_read_json(file) for file in found if file.name == "processor_config.json"), {})
        outer = {**_token_ids(path), **outer}
        return _from_values(values, outer)
    return _from_values(_read_json(_existing(path)))


def _token_ids(folder: Path) -> dict[str, Any]:
    """Returns the ids of placeholders in the config of the model; older ones call an id an index."""
    if not (folder / "config.json").is_file():
        return {}
    model = _read_json(folder / "config.json")
    names = [f"{medium}_token_{name}" for medium in ("image", "video") for name in ("index", "id")]
    return {name: model[name] for name in names if name in model}


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise ConfigError(f"{path} has none of {', '.join(_FILES)}. Give the folder that a processor was saved to.")
    if not path.is_file():
        raise ConfigError(
            f"{str(path)!r} is neither a folder nor a file. Give a folder that a processor was saved to (nothing is "
            "downloaded): AutoProcessor.from_pretrained(...).save_pretrained(folder)."
        )
    return path


def _from_values(values: Mapping[str, Any], outer: Mapping[str, Any] | None = None) -> ProcessorConfig:
    inner = values.get("image_processor")
    if isinstance(inner, Mapping):  # processor_config.json holds the image processor inside
        outer = {**values, **(outer or {})}
        values = inner
    return ProcessorConfig(values, outer=outer)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}. Give the file of save_pretrained.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, not an object. Give a preprocessor_config.json.")
    return values
