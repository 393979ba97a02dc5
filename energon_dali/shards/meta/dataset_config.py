"""The file `dataset.yaml`: which samples a dataset makes of its parts. It is read and checked here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from energon_dali.errors import DatasetFormatError, UntrustedCodeError
from energon_dali.shards.documents.content import check_inner_path, excerpt, excerpt_names
from energon_dali.shards.documents.yaml_text import write_yaml
from energon_dali.shards.meta.document import META, check_keys, check_new_name, read_meta_document
from energon_dali.shards.meta.splits import SPLIT_NAMES
from energon_dali.shards.storage import StoragePath

DEFAULT_NAME = "dataset.yaml"
FOREIGN_MODULES = ("megatron.energon", "megatron.energon.flavors", "energon_dali", "energon_dali.samples")
"""Modules whose classes are replaced by those of this package with the same names."""
STANDARD, CRUDE = "StandardWebdatasetFactory", "CrudeWebdataset"
TYPED_FACTORIES = {
    f"{kind}Webdataset": f"{kind}Sample"
    for kind in (
        "Captioning",
        "Image",
        "ImageClassification",
        "Interleaved",
        "MultiChoiceVQA",
        "OCR",
        "SimilarityInterleaved",
        "Text",
        "VidQA",
        "VQA",
        "VQAOCR",
    )
}
"""Older names of factories, and the sample type of each."""
SAMPLE_TYPES = frozenset(("Sample", "CrudeSample", *TYPED_FACTORIES.values()))
"""Names of `sample_type` that are allowed without trusting the dataset."""
FACTORIES = frozenset(
    (STANDARD, CRUDE, "DefaultGenericWebdatasetFactory", "DefaultDecoderWebdatasetFactory", *TYPED_FACTORIES)
)

ORDER_KEYS = frozenset(("max_samples_per_sequence", "parallel_shard_iters", "shuffle_over_epochs"))
"""Arguments of Energon's factories that say how the samples are shuffled; they override those of the call."""
_KEYS = frozenset(("__module__", "__class__", "part_filter", "split_config", "subflavors")) | ORDER_KEYS
_STANDARD_KEYS = _KEYS | {"field_map", "sample_loader", "sample_type"}


def read_dataset_config(root: StoragePath, name: str = DEFAULT_NAME, *, allow_imports: bool = False) -> dict[str, Any]:
    """Reads and checks `dataset.yaml`; an older factory name is replaced by its `sample_type`.

    Args:
        root: Folder of the dataset.
        name: File in `.nv-meta`.
        allow_imports: Accept the names of classes of other packages.

    Raises:
        DatasetFormatError: The file is missing or cannot be understood.
        UntrustedCodeError: It names a class of another package, and `allow_imports` is False.
        StorageError: It cannot be read.
    """
    path = root / META / name
    config = read_meta_document(path, root)
    if config is None:
        raise DatasetFormatError(
            f"{path} is missing: it says which samples the dataset makes. Run `energon-dali prepare "
            f"{root.quoted}` with --sample-type, or give dataset_config=NAME if it has another name."
        )
    if "__class__" in config:
        _check_type(config, FACTORIES, path, allow_imports)
    factory = own_factory(config)
    if factory in TYPED_FACTORIES:
        del config["__class__"]
        config.pop("__module__", None)
        config["sample_type"] = {"__module__": FOREIGN_MODULES[0], "__class__": TYPED_FACTORIES[factory]}
        factory = STANDARD
    if factory is not None:  # the keys of a factory of the user are its own
        check_keys(config, _KEYS if factory == CRUDE else _STANDARD_KEYS, path)
        if factory != CRUDE:
            _check_standard(config, path, allow_imports)
    split_config_of(config, path)
    subflavors_of(config, path)
    return config


def subflavors_of(config: Mapping[str, Any], path: StoragePath | str) -> dict[str, Any]:
    """Returns the subflavors in a `dataset.yaml`.

    Args:
        config: Content of the file.
        path: The file, for messages.

    Raises:
        DatasetFormatError: They are not a mapping.
    """
    subflavors = config.get("subflavors", {})
    if not isinstance(subflavors, dict):
        raise DatasetFormatError(
            f"{path} has subflavors={excerpt(subflavors)}, and they should be a mapping. Write `name: value` lines."
        )
    return dict(subflavors)


def split_config_of(config: Mapping[str, Any], path: StoragePath) -> str | None:
    """Returns the split file that a `dataset.yaml` names, None if it names none.

    Args:
        config: Content of the file.
        path: The file, for messages.

    Raises:
        DatasetFormatError: It is not the name of a file in `.nv-meta`.
    """
    name = config.get("split_config")
    if name is None:
        return None
    try:
        if not isinstance(name, str):
            raise ValueError("it is not text")
        check_inner_path(name)
    except ValueError as error:
        raise DatasetFormatError(
            f"{path} has split_config={excerpt(name)}: {error}. Write the name of a file in {META}, such as "
            "split_config: split2.yaml."
        ) from error
    return name


def own_class(value: Mapping[str, Any], allowed: Collection[str]) -> str | None:
    """Returns the name of a class of Energon or this package; None for a class of the user, whatever its name.

    Args:
        value: A mapping with `__class__`, and perhaps `__module__`.
        allowed: The names of these classes.
    """
    module, name = value.get("__module__", FOREIGN_MODULES[0]), value["__class__"]
    ours = module in FOREIGN_MODULES or module.startswith(("megatron.energon.", "energon_dali."))
    return name if ours and name in allowed else None


def own_factory(config: Mapping[str, Any]) -> str | None:
    """Returns which of `FACTORIES` a `dataset.yaml` names; None for a class of the user."""
    return own_class(config, FACTORIES) if "__class__" in config else STANDARD


def is_crude(config: Mapping[str, Any]) -> bool:
    """Returns whether samples stay dicts of parts, for a cooker of the task encoder."""
    return own_factory(config) == CRUDE


def sample_type_name(config: Mapping[str, Any]) -> str:
    """Returns the name of the sample class, such as "CaptioningSample"."""
    if own_factory(config) is None:
        return str(config["__class__"])
    return "CrudeSample" if is_crude(config) else str(config["sample_type"]["__class__"])


def _check_standard(config: dict[str, Any], path: StoragePath, trusted: bool) -> None:
    kind = config.get("sample_type")
    if not isinstance(kind, dict) or not isinstance(kind.get("__class__"), str):
        raise DatasetFormatError(
            f"{path} has no `sample_type: {{__module__: megatron.energon, __class__: NAME}}`. Allowed names are "
            f"{', '.join(sorted(SAMPLE_TYPES))}; for a crude dataset write `__module__: megatron.energon` and "
            f"`__class__: {CRUDE}`."
        )
    _check_type(kind, SAMPLE_TYPES, path, trusted)
    if ("field_map" in config) == ("sample_loader" in config):
        raise DatasetFormatError(
            f"{path} needs either a field_map (field: part) or a sample_loader (sample_loader.py:function), and not "
            "both."
        )
    fields = config.get("field_map", {})
    if not isinstance(fields, dict) or not all(
        isinstance(name, str) and isinstance(part, str) for name, part in fields.items()
    ):
        raise DatasetFormatError(
            f"{path} has a field_map that is not a mapping of field to part. Write lines such as `image: jpg,png`."
        )
    if "sample_loader" in config:
        if not isinstance(config["sample_loader"], str):
            raise DatasetFormatError(
                f"{path} has sample_loader={excerpt(config['sample_loader'])}. Write it as sample_loader.py:function."
            )
        if config.get("part_filter") is None:
            raise DatasetFormatError(
                f"{path} has a sample_loader but no part_filter. Write `part_filter: sample_loader.py:part_filter`, "
                "or a list of parts."
            )


def _check_type(value: Mapping[str, Any], allowed: frozenset[str], path: StoragePath, trusted: bool) -> None:
    module, name = value.get("__module__", FOREIGN_MODULES[0]), value["__class__"]
    if not isinstance(module, str) or not isinstance(name, str):
        raise DatasetFormatError(
            f"{path} has __module__={excerpt(module)} and __class__={excerpt(name)}, which are not both text. Write "
            f"the names of a module and of a class in it, such as {FOREIGN_MODULES[0]} and {min(allowed)}."
        )
    if trusted or own_class(value, allowed) is not None:
        return
    raise UntrustedCodeError(
        f"{path} names the class {excerpt_names([f'{module}.{name}'])}, which is not one of "
        f"{', '.join(sorted(allowed))}. Importing it runs code that the dataset chose: look at it, then "
        "pass allow_imports=True."
    )


def write_dataset_config(root: StoragePath, config: Mapping[str, Any], name: str = DEFAULT_NAME) -> None:
    """Writes `dataset.yaml`.

    Args:
        root: Folder of the dataset.
        config: Content, from `crude_config` or `sample_config`, or any plain values.
        name: File in `.nv-meta`.

    Raises:
        ConfigError: It cannot have this name.
        StorageError: It cannot be written.
    """
    check_config_name(name)
    (root / META / name).write_bytes(write_yaml(dict(config)))


def check_config_name(name: str) -> None:
    """Raises ConfigError unless a new `dataset.yaml` may have this name."""
    check_new_name(name, (".yaml",), SPLIT_NAMES)


def crude_config(subflavors: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the configuration of a dataset whose samples stay dicts, for a cooker of the task encoder."""
    config: dict[str, Any] = {"__module__": FOREIGN_MODULES[0], "__class__": CRUDE}
    return {**config, "subflavors": dict(subflavors)} if subflavors else config


def sample_config(sample_type: str, field_map: Mapping[str, str] | None) -> dict[str, Any]:
    """Returns the configuration of a dataset of one sample type.

    Args:
        sample_type: Such as "CaptioningSample".
        field_map: Part name of each field, such as `{"image": "jpg,png"}`; None refers to sample_loader.py instead.
    """
    config: dict[str, Any] = {"sample_type": {"__module__": FOREIGN_MODULES[0], "__class__": sample_type}}
    if field_map is not None:
        return {**config, "field_map": dict(field_map)}
    return {**config, "sample_loader": "sample_loader.py:sample_loader", "part_filter": "sample_loader.py:part_filter"}
