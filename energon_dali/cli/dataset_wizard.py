"""The dialogue that writes `dataset.yaml`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import click

from energon_dali.shards import StoragePath
from energon_dali.shards.documents.content import printable
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.meta.dataset_config import CRUDE, SAMPLE_TYPES, crude_config, sample_config
from energon_dali.shards.meta.document import META

CHOICES = (*sorted(SAMPLE_TYPES - {"CrudeSample", "VQAOCRSample"}), CRUDE)
"""The choices, in the order of their numbers."""
MANY_PARTS = 10
"""With more part names than this, the dialogue does not ask for a field map."""
_LOADER_NAME = "sample_loader.py"


def fields_of(sample_type: str) -> list[dataclasses.Field[Any]]:
    """Returns the fields of a sample type that a dataset must fill."""
    from energon_dali.samples.kinds import sample_kind  # lazy: imports torch, and `--help` should not wait for it

    kind = sample_kind(sample_type)
    assert kind is not None, "the names of sample types are checked"
    return [field for field in dataclasses.fields(kind) if not field.name.startswith("__")]


def choose_sample_type(asked: str | None) -> str:
    """Returns the name of a sample type: the requested one, or the one that the user chooses.

    Raises:
        click.ClickException: The requested name is not known.
    """
    if asked is not None:
        if asked not in SAMPLE_TYPES | {CRUDE}:
            known = "\n".join(f"  - {name}" for name in CHOICES)
            raise click.ClickException(f"The sample type {asked!r} is not known. Give one of:\n{known}")
        return CRUDE if asked == "CrudeSample" else asked
    click.echo("The following sample types are available:")
    for number, name in enumerate(CHOICES):
        click.echo(f"{number}. {'Crude sample (a plain dict, for cooking)' if name == CRUDE else name}")
    return CHOICES[click.prompt("Please enter a number to choose a class", type=click.IntRange(0, len(CHOICES) - 1))]


def make_config(
    root: StoragePath, sample_type: str | None, field_map: str | None, part_names: Sequence[str], *, interactive: bool
) -> dict[str, Any]:
    """Returns what goes into `dataset.yaml`; writes a template of sample_loader.py where there is no field map.

    Args:
        root: Folder of the dataset.
        sample_type: Name of the sample type; None asks.
        field_map: JSON of field to part; None asks.
        part_names: Parts that the dataset has.
        interactive: Whether the user may be asked.

    Raises:
        click.ClickException: The name is not known, or the JSON is invalid.
        StorageError: The template cannot be written.
    """
    chosen = choose_sample_type(sample_type)
    if chosen == CRUDE:
        click.echo("A crude dataset needs no field map. Give your task encoder a `Cooker` for its samples.")
        return crude_config()
    if field_map is not None:
        return sample_config(chosen, parse_field_map(field_map, chosen))
    if interactive and len(part_names) <= MANY_PARTS:
        question = "Do you want to set a simple field_map[Y] (or write your own sample_loader [n])?"
        if click.confirm(question, default=True):
            return sample_config(chosen, _ask_field_map(chosen, part_names))
    _write_loader(root, chosen, part_names, interactive=interactive)
    return sample_config(chosen, None)


def warn_of_lost_parts(fields: Mapping[str, str], part_names: Sequence[str], config_name: str) -> None:
    """Warns of fields whose parts no sample has.

    Args:
        fields: Part of each field.
        part_names: Parts that the dataset has.
        config_name: Name of the file that has the fields.
    """
    there = printable(", ".join(part_names))
    for field, parts in fields.items():
        if not any(option.split("[")[0].strip() in part_names for option in parts.split(",")):
            click.echo(
                f"Warning: no sample has a part {parts!r} for the field {field!r}; there are {there}. "
                f"Correct it in {META}/{config_name}, or every sample will fail.",
                err=True,
            )


def parse_field_map(text: str, sample_type: str) -> dict[str, str]:
    """Returns the field map of a JSON text.

    Raises:
        click.ClickException: It is not JSON or not a mapping of names, or its fields do not fit the sample type.
    """
    try:
        fields = parse_json(text)
    except ValueError as error:
        raise click.ClickException(
            f'--field-map is not JSON: {error}. Write it like \'{{"image": "jpg"}}\'.'
        ) from error
    if not isinstance(fields, dict) or not all(isinstance(part, str) for part in fields.values()):
        raise click.ClickException(
            f'--field-map {text} is not a mapping of field to part. Write it like \'{{"image": "jpg"}}\'.'
        )
    known = {field.name: _is_optional(field) for field in fields_of(sample_type)}
    unknown = sorted(fields.keys() - known.keys())
    if unknown:
        raise click.ClickException(
            f"--field-map names {', '.join(unknown)}, which {sample_type} does not have. Its fields are "
            f"{', '.join(sorted(known))}."
        )
    lacking = sorted(name for name, optional in known.items() if not optional and name not in fields)
    if lacking:
        raise click.ClickException(
            f"--field-map lacks {', '.join(lacking)}, which {sample_type} needs. Give the part of each of these fields."
        )
    return fields


def _is_optional(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _ask_field_map(sample_type: str, part_names: Sequence[str]) -> dict[str, str]:
    click.echo(
        "\nFor each field, please enter the name of its part. Of several, with commas, the first one present is used."
    )
    click.echo(printable(f"Parts of the dataset: {', '.join(part_names)}. Inside JSON: json[field][field]."))
    click.echo("Leave empty to skip an optional field.")
    answers: dict[str, str] = {}
    for field in fields_of(sample_type):
        optional = _is_optional(field)
        note = ", optional" if optional else ""
        while True:
            answer = click.prompt(
                f"Part for '{field.name}' ({field.type}{note})", default="", show_default=False
            ).strip()
            if not answer and optional:
                break
            unknown = [option for option in answer.split(",") if option.split("[")[0].strip() not in part_names]
            if not unknown:
                answers[field.name] = answer
                break
            click.echo(f"The dataset has no part {', '.join(map(repr, unknown))}. Please try again.")
    return answers


def _write_loader(root: StoragePath, sample_type: str, part_names: Sequence[str], *, interactive: bool) -> None:
    loader_path = root / META / _LOADER_NAME
    if loader_path.is_file() and not (
        interactive and click.confirm("Do you want to overwrite the existing sample loader?")
    ):
        return
    lines = ["# Written by `energon-dali prepare`: edit it to return the fields of a sample.", "", ""]
    lines += [
        "def sample_loader(raw: dict) -> dict:",
        '    """Returns the fields of a sample; images in `raw` are decoded."""',
    ]
    lines += ["    return dict("]
    for field in fields_of(sample_type):
        default = "" if field.default is dataclasses.MISSING else f", default {field.default!r}"
        lines.append(f'        {field.name}=raw["PART"],  # {field.type}{default}')
    lines += ["    )", "", "", "def part_filter(part: str) -> bool:"]
    lines += [
        '    """Returns whether a part is needed; the others are not read."""',
        f"    return part in {tuple(part_names)!r}",
        "",
    ]
    loader_path.write_bytes("\n".join(lines).encode())
    click.echo(f"\nWrote {loader_path}. Please edit it to return the right values.")
