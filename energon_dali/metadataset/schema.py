"""The records of a metadataset: the keys that each may have, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.types import AllowInfNan

from energon_dali.calls import nearest_names
from energon_dali.metadataset.document import Document, Node
from energon_dali.shards.documents.content import excerpt
from energon_dali.shards.documents.yaml_text import Keys

Number = Annotated[float, AllowInfNan(False), Field(ge=0)]
R = TypeVar("R", bound="Record")

_FORMS = ("Metadataset", "MetadatasetV2")
_MODULES = ("megatron.energon", "energon_dali")


class Record(BaseModel):
    """A mapping in a metadataset. Types are strict: text is not read as a number, nor a number as text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FileStoreRecord(Record):
    """An entry of `aux`: a prepared dataset (`path`) or a plain folder (`fs_path`)."""

    path: str | None = None
    fs_path: str | None = None


class WeightsRecord(Record):
    """A weight that changes while the job runs: held from point to point, or moving linearly between them."""

    step: dict[str, Number] | None = None
    linear: dict[str, Number] | None = None
    over: str | None = None
    """What the points count."""


Weight = Number | WeightsRecord


class OptionsRecord(Record):
    """The options of datasets and joins."""

    split_part: str | None = None
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    dataset_config: str | None = None
    split_config: str | None = None


class V1Record(OptionsRecord):
    """A dataset in a metadataset of the first form."""

    path: str
    weight: Weight = 1.0
    subflavor: str | None = None


class ReferenceRecord(OptionsRecord):
    """A dataset."""

    path: str
    subset: Any = None
    aux: dict[str, Any] | None = None
    """Each is text or a FileStoreRecord."""


class JoinedRecord(ReferenceRecord):
    """A dataset inside a join."""

    nonmatch: Literal["error", "skip", "none"] = "error"


class JoinRecord(OptionsRecord):
    """Several datasets joined by key."""

    join: list[Any] | dict[str, Any]
    joiner: Any
    subset: Any = None


class ManyRecord(Record):
    """Several datasets put together."""

    subset: Any = None


class BlendRecord(ManyRecord):
    """Datasets that are drawn from in proportion to their weights."""

    blend: list[Any]


class EpochizedRecord(ManyRecord):
    """Datasets whose samples are repeated a given number of times in an epoch."""

    blend_epochized: list[Any]


class ConcatRecord(ManyRecord):
    """Datasets that follow one another."""

    concat: list[Any]


class WeightedReference(ReferenceRecord):
    """A dataset in a blend."""

    weight: Weight = 1.0


class WeightedJoin(JoinRecord):
    """A join in a blend."""

    weight: Weight = 1.0


class RepeatedReference(ReferenceRecord):
    """A dataset in an epochized blend."""

    repetitions: Number = 1.0


class RepeatedJoin(JoinRecord):
    """A join in an epochized blend."""

    repetitions: Number = 1.0


class V1Split(Record):
    """A split in a metadataset of the first form."""

    datasets: list[Any]


def parse_record(kind: type[R], node: Node) -> R:
    """Returns a mapping of a metadataset, checked.

    Args:
        kind: The record that it should be.
        node: The mapping.

    Raises:
        DatasetFormatError: It has another form; the message names file, line and key.
    """
    allowed = sorted(kind.model_fields)
    check_mapping(node, allowed)
    try:
        return kind.model_validate(node.value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        if first["type"] == "missing":
            name = str(first["loc"][-1])
            raise node.error(f"{name!r} is missing. It is needed here; allowed are {', '.join(allowed)}.") from None
        # After the keys, pydantic names the members of a union that it tried.
        wrong = node.at(*_existing_keys(node.value, first["loc"]))
        raise wrong.error(
            f"{excerpt(wrong.value)} is invalid here: {_expected(first['type'], first['msg'])}."
        ) from None


def check_mapping(node: Node, allowed: list[str]) -> None:
    """Refuses values that are not mappings, and keys that nothing would read.

    Raises:
        DatasetFormatError: The value is not a mapping, or has an unknown key; the message names the nearest known one.
    """
    if not isinstance(node.value, Mapping):
        raise node.error(
            f"{excerpt(node.value)} is not a mapping, which is needed here, with the keys {', '.join(allowed)}."
        )
    for key in node.value:
        if key not in allowed:
            raise node.at(key).error(unknown_name("key", key, allowed))


def unknown_name(kind: str, name: str, allowed: list[str]) -> str:
    """Returns the message for an unknown name, with the known names and the nearest of them."""
    near = nearest_names(name, allowed)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"the {kind} {name!r} is not known here. Allowed are {', '.join(allowed)}.{hint}"


def read_splits(document: Document) -> tuple[Mapping[str, Any], Literal[1, 2]]:
    """Returns (the splits of a metadataset, 1 or 2 for its first or second form).

    Raises:
        DatasetFormatError: It has neither form.
    """
    root = document.root
    check_mapping(root, ["__class__", "__module__", "path", "splits"])
    name, module = root.value.get("__class__", _FORMS[0]), root.value.get("__module__", _MODULES[0])
    if not (isinstance(module, str) and f"{module}.".startswith(tuple(f"{known}." for known in _MODULES))) or (
        name not in _FORMS
    ):
        raise root.at("__class__").error(
            f"{module}.{name} is not a metadataset. Write `__module__: megatron.energon` and `__class__: "
            "MetadatasetV2` (or Metadataset for the first form)."
        )
    splits = root.value.get("splits")
    if not isinstance(splits, Mapping) or not splits:
        raise root.at("splits").error(
            f"splits is {splits!r}, and has to name at least one split, such as `splits: {{train: ...}}`."
        )
    return splits, 2 if name == "MetadatasetV2" else 1


def _existing_keys(value: Any, keys: tuple[str | int, ...]) -> Keys:
    """Returns the first of some keys, as far as they lead somewhere."""
    found: list[str | int] = []
    for key in keys:
        known = value if isinstance(value, Mapping) else range(len(value)) if isinstance(value, list) else ()
        if key not in known:
            break
        value = value[key]
        found.append(key)
    return tuple(found)


def _expected(kind: str, message: str) -> str:
    """Returns what is allowed, in words, for an error of pydantic."""
    words = {
        "string_type": "give text (in quotes, if it looks like a number or a word such as yes)",
        "float_type": "give a number",
        "int_type": "give a whole number",
        "dict_type": "give a mapping (name: value)",
        "list_type": "give a list (lines that begin with -)",
    }
    return words.get(kind, message[:1].lower() + message[1:])
