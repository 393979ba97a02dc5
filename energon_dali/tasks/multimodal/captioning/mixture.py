"""The blend that is trained on: several prepared datasets, or two parts of one, each with a share of the samples."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, DatasetError


def blend_of(folders: Sequence[str], weights: Sequence[float] | None, val_share: float) -> dict[str, Any]:
    """Returns a MetadatasetV2 with the splits train and val.

    The end of each dataset is kept for validation. One dataset alone is cut in two, so that there is something to
    blend.

    Args:
        folders: Prepared datasets, each a folder or URL.
        weights: One number per dataset, or two for one dataset: how often it is drawn in training. None: all alike.
        val_share: Share of each dataset that is kept for validation, 0 to below 1. 0 takes the part "val" of its split.

    Raises:
        ConfigError: There is no dataset, the weights do not fit, or the share leaves nothing to train on.
    """
    if not folders:
        raise ConfigError("There is no dataset: give data_dir one or more folders of prepared datasets.")
    if not 0 <= val_share < 1:
        raise ConfigError(f"{val_share = } leaves nothing to train on: give a share from 0 to below 1, such as 0.1.")
    end = 1 - val_share
    parts = [(folder, 0.0, end) for folder in folders]
    if len(parts) == 1:
        parts = [(folders[0], 0.0, end / 2), (folders[0], end / 2, end)]
    weights = [1.0] * len(parts) if weights is None else weights
    if len(weights) != len(parts) or not all(weight > 0 for weight in weights):
        raise ConfigError(
            f"weights={list(weights)} for {len(parts)} parts of the blend ({', '.join(path for path, _, _ in parts)}): "
            "give a number above 0 for each, or null for equal ones."
        )
    train = [
        {"path": _absolute(path), "weight": float(weight), "subset": {"range": [_percent(first), _percent(last)]}}
        for (path, first, last), weight in zip(parts, weights, strict=True)
    ]
    val: list[dict[str, Any]] = [{"path": _absolute(path)} for path in folders]
    if val_share:
        val = [{**entry, "split_part": "train", "subset": {"range": [_percent(end), "100%"]}} for entry in val]
    splits = {"train": {"blend": train}, "val": {"concat": val} if len(val) > 1 else val[0]}
    return {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}


def check_prepared(folders: Sequence[str]) -> None:
    """Raises an error that says what to do if a local folder holds no prepared dataset.

    Raises:
        DatasetError: A folder is missing, or was not prepared.
    """
    for folder in folders:
        if "://" in folder or (Path(folder) / ".nv-meta").is_dir():
            continue
        if not Path(folder).is_dir():
            raise DatasetError(
                f"{folder} does not exist (from {Path.cwd()}). Run `make demo`, which makes demo/captions, or name "
                "your own: dataset.cfg.data_dir=[FOLDER,FOLDER]."
            )
        raise DatasetError(f"{folder} is not prepared: run `energon-dali prepare {shlex.quote(str(folder))}` once.")


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).resolve())


def _percent(share: float) -> str:
    return f"{100 * share:g}%"
