"""Fields that several front ends have in common, as the configuration of a processor has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energon_dali.decode.front_ends.front_end import FrontEnd
    from energon_dali.decode.front_ends.processor_config import ProcessorConfig
    from energon_dali.decode.front_ends.resampling import Filter


def take_conversion(
    config: ProcessorConfig, mean: tuple[float, ...], std: tuple[float, ...], kind: Filter, *, rgb: bool | None = True
) -> dict[str, Any]:
    """Returns the fields values, filter and convert_rgb.

    Args:
        config: Of the processor.
        mean: Default of image_mean.
        std: Default of image_std.
        kind: Default of resample.
        rgb: Default of do_convert_rgb; None leaves the field out, for videos.

    Raises:
        ConfigError: A value is not supported.
    """
    fields: dict[str, Any] = {"values": config.take_values(mean=mean, std=std), "filter": config.take_filter(kind)}
    return fields if rgb is None else {**fields, "convert_rgb": config.take_flag("do_convert_rgb", rgb)}


def take_texts(config: ProcessorConfig, front_end: type[FrontEnd], *names: str) -> dict[str, Any]:
    """Returns texts that a processor has under the names of fields, else the defaults of the fields.

    Args:
        config: Of the processor.
        front_end: Has the fields.
        *names: Of the fields.
    """
    return {name: config.outer_text(name, getattr(front_end, name)) for name in names}


def take_pair(config: ProcessorConfig, side: int, *, square: bool = False) -> tuple[int, int] | None:
    """Returns the (height, width) to which a processor resizes; None if it does not.

    Args:
        config: Of the processor.
        side: Default of both.
        square: Whether a single number stands for both.

    Raises:
        ConfigError: The size is something else.
    """
    size = config.take_size("size", {"height": side, "width": side}, square=square)
    return height_and_width(config, size) if config.take_flag("do_resize", True) else None


def height_and_width(config: ProcessorConfig, size: dict[str, int]) -> tuple[int, int]:
    """Returns the (height, width) of a size.

    Raises:
        ConfigError: It is something else.
    """
    if size.keys() != {"height", "width"}:
        raise config.error(f"size={size} is not a height and a width")
    return size["height"], size["width"]


def take_around(config: ProcessorConfig, *known: str) -> str | None:
    """Returns the class of the processor around an image processor; None if there is none.

    Args:
        config: Of the image processor.
        *known: Classes whose text the front end supports.

    Raises:
        ConfigError: It is another class.
    """
    around: str | None = config.outer.get("processor_class")
    if around not in (None, *known):
        raise config.error(f"the text of processor_class={around} is not covered. Give its image_processor")
    return around
