"""What makes one sample of joined ones: a Sample class, or a function of the user's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from energon_dali import samples
from energon_dali.errors import DatasetFormatError, UntrustedCodeError
from energon_dali.metadataset.document import Document, Keys
from energon_dali.metadataset.reference import JoinerReference
from energon_dali.shards.meta.dataset_config import FOREIGN_MODULES, SAMPLE_TYPES

_FORM = (
    "Write `joiner: {__module__: megatron.energon, __class__: CaptioningSample}` for a Sample class, or `joiner: "
    "{__module__: my_module, __function__: my_function}`."
)


def read_joiner(value: Any, document: Document, keys: Keys) -> JoinerReference:
    """Returns the joiner that a metadataset names; imports nothing.

    Args:
        value: A mapping with `__class__` or `__function__`; in a program's dict also the class or function itself.
        document: The metadataset.
        keys: The way to it.

    Raises:
        DatasetFormatError: It is of another form.
    """
    if callable(value):
        name = str(getattr(value, "__name__", type(value).__name__))
        return JoinerReference(name, is_function=not isinstance(value, type), given=value)
    names = value if isinstance(value, Mapping) else {}
    kinds = [kind for kind in ("__class__", "__function__") if kind in names]
    text = all(isinstance(part, str) for part in names.values())
    if len(kinds) != 1 or not text or set(names) - {"__module__", kinds[0]}:
        raise document.error(keys, f"{value!r} is no joiner. {_FORM}")
    return JoinerReference(names[kinds[0]], names.get("__module__"), kinds[0] == "__function__")


def load_joiner(reference: JoinerReference, place: object, *, trust_dataset_code: bool) -> Callable[..., Any]:
    """Returns the function that makes one sample of the joined ones.

    Args:
        reference: What the metadataset names.
        place: Where, for messages.
        trust_dataset_code: Import classes and functions of other packages.

    Raises:
        UntrustedCodeError: It is of another package, and the user did not allow that.
        DatasetFormatError: It cannot be imported, or is no Sample class.
    """
    found = reference.given if reference.given is not None else _find(reference, place, trust_dataset_code)
    if reference.is_function:
        if callable(found):
            return found
    else:
        joiner = getattr(found, "from_joined", None)
        if isinstance(found, type) and callable(joiner):
            return joiner  # type: ignore[no-any-return]
    raise DatasetFormatError(
        f"{place}: the joiner {reference.module}.{reference.name} is {found!r}, which is no "
        f"{'function' if reference.is_function else 'Sample class with from_joined'}. {_FORM}"
    )


def _find(reference: JoinerReference, place: object, trusted: bool) -> Any:
    module, name = reference.module or FOREIGN_MODULES[0], reference.name
    ours = module in FOREIGN_MODULES or module.startswith("megatron.energon.")
    if ours and not reference.is_function and name in SAMPLE_TYPES - {"CrudeSample"}:
        return getattr(samples, name)
    if not trusted:
        raise UntrustedCodeError(
            f"{place}: the joiner {module}.{name} is none of {', '.join(sorted(SAMPLE_TYPES - {'CrudeSample'}))}. "
            "Loading it runs code that the file chose: look at it, then pass trust_dataset_code=True."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise DatasetFormatError(
            f"{place}: the joiner {module}.{name} cannot be imported ({error}). Install or correct it. {_FORM}"
        ) from error
    return found
