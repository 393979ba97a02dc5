"""Front ends of your own: classes that `from_processor` chooses for processors that no built-in one covers."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.processor_family import ProcessorFamily
from energon_dali.errors import ConfigError

FamilyT = TypeVar("FamilyT", bound=type[ProcessorFamily])


def register_front_end(family: FamilyT) -> FamilyT:
    """Makes `FrontEnd.from_processor` use a class of yours for the processors that it names; a decorator.

        @register_front_end
        @dataclass(frozen=True, kw_only=True)
        class Letterbox(FrontEnd):
            family = "letterbox"
            processors = ("LetterboxImageProcessor",)
            ...

    Call it in the process that calls `from_processor`. Worker processes need the class to be importable, and no more.
    docs/vlm.md has a whole example ("Add your model").

    Args:
        family: A subclass of FrontEnd, of VideoFrontEnd for videos, or of AudioFrontEnd, with all abstract methods,
            `family` and `processors`.

    Returns:
        The class.

    Raises:
        ConfigError: It is not such a class, or a front end covers one of its processors already. With `around`, it may
            cover one for further classes of processors around it.
    """
    from energon_dali.decode.audio_front_ends import AudioFrontEnd
    from energon_dali.decode.audio_front_ends.registry import AUDIO_FAMILIES, registered_audio
    from energon_dali.decode.front_ends.registry import FAMILIES, VIDEO_FAMILIES, registered

    name = getattr(family, "__name__", repr(family))
    if not (isinstance(family, type) and issubclass(family, (FrontEnd, AudioFrontEnd))) or inspect.isabstract(family):
        missing = ", ".join(sorted(getattr(family, "__abstractmethods__", ())))
        raise ConfigError(
            f"register_front_end({name}) needs a subclass of FrontEnd or AudioFrontEnd that has all methods"
            + (f"; {missing} are missing." if missing else ".")
        )
    names = getattr(family, "processors", ())
    if not isinstance(getattr(family, "family", None), str) or not isinstance(names, tuple) or not names:
        raise ConfigError(
            f"register_front_end({name}) needs the class attributes `family`, a text, and `processors`, a tuple of the "
            "processors' class names without the suffixes Fast and Pil."
        )
    added: list[Any] = registered_audio if issubclass(family, AudioFrontEnd) else registered
    if family in added:
        return family
    for other in (*FAMILIES, *VIDEO_FAMILIES, *AUDIO_FAMILIES, *registered, *registered_audio):
        both = set(names) & set(other.processors)
        around = set(family.around) & set(other.around) if family.around else not other.around
        if both and around:
            raise ConfigError(
                f"register_front_end({name}) names {', '.join(sorted(both))}, which {other.__name__} covers already. "
                "Subclass that one and set `around` to the class of the processor around it, or make your front end "
                "yourself instead of by from_processor."
            )
    added.append(family)
    return family
