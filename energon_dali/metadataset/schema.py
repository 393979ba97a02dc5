"""The form of what stands in a metadataset: which keys a record has, and of which type they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.types import AllowInfNan

from energon_dali.metadataset.document import Document, Keys
from energon_dali.nearest import nearest_names
from energon_dali.shards.documents.content import excerpt

Number = Annotated[float, AllowInfNan(False), Field(ge=0)]
R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """A mapping in a metadataset. Types are strict: text is no number, a number no text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FileStoreRecord(Record):
    """`aux` entry: a prepared dataset or a plain folder."""

    path: str | None = None
    fs_path: str | None = None


class OptionsRecord(Record):
    """What may be said at a dataset and at a join."""

    split_part: str | None = None
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    dataset_config: str | None = None
    split_config: str | None = None


class V1Record(OptionsRecord):
    """A dataset in a metadataset of the first form."""

    path: str
    weight: Number = 1.0
    subflavor: str | None = None


class ReferenceRecord(OptionsRecord):
    """A dataset."""

    path: str
    subset: Any = None
    aux: dict[str, Any] | None = None
    """Text or a FileStoreRecord each."""


class JoinedRecord(ReferenceRecord):
    """A dataset inside a join."""

    nonmatch: Literal["error", "skip", "none"] = "error"


class JoinRecord(OptionsRecord):
    """Several datasets joined by key."""

    join: list[Any] | dict[str, Any]
    joiner: Any
    subset: Any = None


class ManyRecord(Record):
    """What puts several datasets together."""

    subset: Any = None


class BlendRecord(ManyRecord):
    """Datasets drawn from by weight."""

    blend: list[Any]


class EpochizedRecord(ManyRecord):
    """Datasets whose samples come a given number of times."""

    blend_epochized: list[Any]


class ConcatRecord(ManyRecord):
    """Datasets one after the other."""

    concat: list[Any]


class WeightedReference(ReferenceRecord):
    """A dataset in a blend."""

    weight: Number = 1.0


class WeightedJoin(JoinRecord):
    """A join in a blend."""

    weight: Number = 1.0


class RepeatedReference(ReferenceRecord):
    """A dataset in an epochized blend."""

    repetitions: Number = 1.0


class RepeatedJoin(JoinRecord):
    """A join in an epochized blend."""

    repetitions: Number = 1.0


class V1Split(Record):
    """A split in a metadataset of the first form."""

    datasets: list[Any]


def parse_record(kind: type[R], value: Any, document: Document, keys: Keys) -> R:
    """Returns a mapping of a metadataset, checked.

    Args:
        kind: What it should be.
        value: The mapping.
        document: Where it stands.
        keys: The way to it.

    Raises:
        DatasetFormatError: It is of another form; the message names file, line and key.
    """
    allowed = sorted(kind.model_fields)
    check_mapping(value, document, keys, allowed)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        # Behind the names of the keys, pydantic names the members of a union that it tried.
        way = _existing_way(value, first["loc"])
        if first["type"] == "missing":
            name = str(first["loc"][-1])
            raise document.error(
                keys, f"{name!r} is missing. It is needed here; allowed are {', '.join(allowed)}."
            ) from None
        raise document.error(
            (*keys, *way), f"{excerpt(_at(value, way))} cannot be here: {_wanted(first['type'], first['msg'])}."
        ) from None


def check_mapping(value: Any, document: Document, keys: Keys, allowed: list[str]) -> None:
    """Refuses what is no mapping, and keys that nobody would read.

    Raises:
        DatasetFormatError: It is none, or has an unknown key; the message names the nearest known one.
    """
    if not isinstance(value, Mapping):
        raise document.error(
            keys, f"{excerpt(value)} stands where a mapping is needed, with the keys {', '.join(allowed)}."
        )
    for key in value:
        if key not in allowed:
            raise document.error((*keys, key), f"{unknown_name('key', key, allowed)}")


def unknown_name(kind: str, name: str, allowed: list[str]) -> str:
    """Returns the message for a name that is not known, with the known ones and the nearest of them."""
    near = nearest_names(name, allowed)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"the {kind} {name!r} is not known here. Allowed are {', '.join(allowed)}.{hint}"


def _existing_way(value: Any, way: tuple[str | int, ...]) -> Keys:
    """Returns the part of a way that leads somewhere."""
    found: list[str | int] = []
    for step in way:
        known = value if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ()
        if step not in known:
            break
        value = value[step]
        found.append(step)
    return tuple(found)


def _at(value: Any, way: Keys) -> Any:
    for step in way:
        value = value[step]
    return value


def _wanted(kind: str, message: str) -> str:
    """Returns what is allowed, in words."""
    words = {
        "string_type": "give text (in quotes, if it looks like a number or a word such as yes)",
        "float_type": "give a number",
        "int_type": "give a whole number",
        "dict_type": "give a mapping (name: value)",
        "list_type": "give a list (lines that begin with -)",
    }
    return words.get(kind, message[:1].lower() + message[1:])
