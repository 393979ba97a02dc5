"""`energon-dali preview` shows samples in the terminal, `view` in the browser; `lint` looks for faulty ones."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from energon_dali.calls import import_extra
from energon_dali.cli.dataset_options import all_parts, file_options, is_jsonl
from energon_dali.errors import ConfigError, DatasetError, StorageError
from energon_dali.samples.description import describe
from energon_dali.samples.transfer import attributes_of
from energon_dali.shards import JsonlFile, WebdatasetFolder
from energon_dali.shards.documents.content import printable, printable_lines, show_count
from energon_dali.shards.measures.places import MeasuredData, describe_measures, measures_of_sample

if TYPE_CHECKING:
    from PIL.Image import Image

_SHADES = " .:-=+*#%@"
"""Letters from dark to bright."""


@click.command("preview")
@click.argument("path")
@click.option("--split-parts", default="train", show_default=True, metavar="A,B", help="Parts of the split.")
@click.option("--index", type=click.IntRange(min=0), help="Show the sample with this index in the whole dataset.")
@click.option("--count", type=click.IntRange(min=1), help="Show this many samples, without asking.")
@click.option(
    "--width", type=click.IntRange(min=2), default=64, show_default=True, help="Letters per line of an image."
)
@file_options
def preview(path: str, split_parts: str, index: int | None, count: int | None, width: int, **given: Any) -> None:
    """Show the samples of the dataset, the metadataset (.yaml), or the .jsonl file at PATH, one after the other.

    Images are drawn in colour if the terminal shows colours, otherwise as letters. Cookers and other hooks do not run.
    """
    options = {name: value for name, value in given.items() if value}
    if index is not None:
        _show_one(path, index, width, options)
        return
    shown = 0
    for part in split_parts.split(","):
        for sample in _samples(path, part, options):
            if count is not None and shown >= count:
                return
            click.echo("\n".join(describe_sample(sample, width, colours=sys.stdout.isatty())))
            for source in values_of(sample).get("__sources__") or ():
                _show_measures(str(source.dataset_path), source.index)
            shown += 1
            if count is None and not click.confirm("Next sample?", default=True):
                return
    click.echo(f"Done. {show_count(shown, 'sample')} in {split_parts}.")


def _show_one(path: str, index: int, width: int, options: Mapping[str, Any]) -> None:
    """Prints a sample by its index, whatever the split; what is wrong with it, if it cannot be made.

    Raises:
        click.ClickException: The sample cannot be read or made.
        DatasetError: There is no such sample, or the dataset cannot be opened.
    """
    from energon_dali.decode.interface import check_media
    from energon_dali.view.scan_source import ScanSource

    if path.endswith((".yaml", ".yml")):
        raise ConfigError(f"{path} is a metadataset, whose datasets each count their samples. Give the path of one.")
    opened = ScanSource(path, **options).open()
    try:
        raw = opened.read(index)
        click.echo(printable(f"{raw.key}, sample {index:,} of {path}, in {raw.shard}"))
        for name, content in raw.parts.items():
            click.echo(printable(f"  part {name}: {len(content):,} bytes"))
        try:
            sample = opened.make(raw)
            check_media(sample)
        except Exception as error:  # the dataset's own code and codecs may raise anything
            reason = printable_lines(f"{type(error).__name__}: {error}")
            raise click.ClickException(f"This sample fails. {reason}") from error
        if opened.note:
            click.echo(opened.note, err=True)
        click.echo("\n".join(describe_sample(sample, width, colours=sys.stdout.isatty())))
        _show_measures(path, index)
    finally:
        opened.close()


def _show_measures(path: str, index: object) -> None:
    """Prints what `energon-dali measure` found out about a sample."""
    data = _data_of(path)
    if data is None or not isinstance(index, int):
        return
    with suppress(DatasetError, StorageError):  # the sample itself was shown
        for encoder, values in measures_of_sample(data, index):
            click.echo(f"  measures by {encoder}: {describe_measures(values)}")


@functools.lru_cache(maxsize=64)
def _data_of(path: str) -> MeasuredData | None:
    """Returns the dataset at a path; None if it cannot be opened."""
    try:
        return JsonlFile(path) if is_jsonl(path) else WebdatasetFolder(path, allow_imports=True)
    except (DatasetError, StorageError):
        return None


def _samples(path: str, part: str, options: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the samples of a split part in file order, with images as PIL images."""
    # Imported only here: the other commands start without the loader.
    from energon_dali.assembly.datasets import get_val_datasets
    from energon_dali.decode import SampleDecoder
    from energon_dali.diagnosis.step_plan import uncooked_encoder
    from energon_dali.worker_config import WorkerConfig

    encoder = uncooked_encoder()
    encoder.decoder = SampleDecoder(image_decode="pilrgb")
    encoder.ignores_conditions = True
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=1)
    opened = get_val_datasets(
        path, split_part=part, worker_config=config, task_encoder=encoder, allow_empty=True, **options
    )
    yield from itertools.chain.from_iterable(dataset for dataset, _ in opened)


def values_of(sample: Any) -> dict[str, Any]:
    """Returns the parts or attributes of a sample by name."""
    return dict(sample) if isinstance(sample, Mapping) else attributes_of(sample)


def describe_sample(sample: Any, width: int, *, colours: bool) -> Iterator[str]:
    """Yields lines that show a sample.

    Args:
        sample: A dataclass, or a dict of parts.
        width: Letters per line of an image.
        colours: Draw images in 24-bit colour, instead of letters.
    """
    values = values_of(sample)
    yield printable(f"{values.get('__key__')} ({type(sample).__name__})")
    for source in values.get("__sources__") or ():
        yield printable(f"  from {source.dataset_path}, {source.shard_name}, sample {source.index}")
    if values.get("__subflavors__"):
        yield printable(f"  subflavors: {values['__subflavors__']}")
    for name, value in values.items():
        if not name.startswith("__"):
            yield from _lines(name, value, width, colours)


def _lines(name: str, value: Any, width: int, colours: bool) -> Iterator[str]:
    if isinstance(value, (list, tuple)) and any(hasattr(item, "tobytes") and hasattr(item, "mode") for item in value):
        for number, item in enumerate(value):
            yield from _lines(f"{name}[{number}]", item, width, colours)
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):
        yield printable(f"  {name}: {value.mode} image, {value.width} x {value.height}")
        yield from draw(value, width, colours=colours)
    else:
        first, *rest = map(printable, (value if isinstance(value, str) else describe(value)).splitlines() or [""])
        yield f"  {printable(name)}: {first}"
        yield from (f"    {line}" for line in itertools.islice(rest, 50))


def draw(image: Image, width: int, *, colours: bool) -> Iterator[str]:
    """Yields the lines of an image: letters, twice as high as wide; or half blocks, two pixels each.

    Args:
        image: A PIL image.
        width: Letters per line.
        colours: Use 24-bit colours.
    """
    columns = min(width, image.width)
    rows = max(1, round(image.height * columns / image.width / 2))
    if not colours:
        grey = image.convert("L").resize((columns, rows)).tobytes()
        for row in range(rows):
            levels = grey[row * columns : (row + 1) * columns]
            yield "    " + "".join(_SHADES[level * len(_SHADES) // 256] for level in levels).rstrip()
        return
    pixels = image.convert("RGB").resize((columns, 2 * rows)).tobytes()
    for row in range(rows):
        line = ""
        for column in range(columns):
            top, bottom = (3 * ((2 * row + half) * columns + column) for half in (0, 1))
            upper, lower = (";".join(str(level) for level in pixels[at : at + 3]) for at in (top, bottom))
            line += f"\x1b[38;2;{upper};48;2;{lower}m\u2580"
        yield f"    {line}\x1b[0m"


@click.command("lint")
@click.argument("path")
@click.option("--split-parts", metavar="A,B", help="Parts of the split; default is all.")
@click.option(
    "--decoder",
    type=click.Choice(["pil", "dali"]),
    default="pil",
    show_default=True,
    help="Decode images with PIL, or with DALI as a DaliDecoder does.",
)
@click.option("--parallel", type=click.IntRange(min=1, max=1024), default=1, show_default=True, help="Processes.")
@file_options
def lint(path: str, split_parts: str | None, decoder: str, parallel: int, **given: Any) -> None:
    """Look for errors in the dataset, the metadataset (.yaml), or the .jsonl file at PATH.

    Compares the indices with the shards, and reads and decodes every sample of the split as a loader would. Names each
    sample that fails, with its shard and the reason; the exit status is then 1. Audio and video are decoded to the
    end with PyAV. Cookers and other hooks do not run.
    """
    # Imported only here: the other commands start without the loader.
    from energon_dali.diagnosis.lint import LintJob, Report, join_reports, run_share
    from energon_dali.shards.prepare.parallel import map_in_order

    options = {name: value for name, value in given.items() if value}
    parts = tuple(split_parts.split(",")) if split_parts else all_parts(path, options)
    job = LintJob(path, parts, decoder, options, parallel)
    reports: list[Report] = []
    for share in map_in_order(functools.partial(run_share, job), range(parallel), parallel):
        reports = share if not reports else [join_reports(*pair) for pair in zip(reports, share, strict=True)]
    for report in reports:
        count = "" if report.num_samples is None else f"{report.num_samples:,} samples, "
        click.echo(printable(f"{report.name}: {count}errors: {len(report.flaws):,}"))
        for flaw in sorted(report.flaws, key=lambda flaw: (flaw.shard, flaw.key)):
            click.echo(printable(str(flaw)))
    if any(report.flaws for report in reports):
        raise SystemExit(1)
    click.echo("Done. Nothing is wrong.")


@click.command("view")
@click.argument("path")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: a free one]")
@click.option("--open/--no-open", "opens", default=False, show_default=True, help="Open the page in the browser.")
@click.option("--encoder", default="", metavar="MODULE:CLASS", help="Show what this task encoder makes of the samples.")
@click.option("--split-part", default="train", show_default=True, help="Part of the split, for the encoder's batch.")
@click.option("--batch-size", type=click.IntRange(min=0), default=4, show_default=True, help="0: the encoder groups.")
@click.option("--packing-buffer-size", type=click.IntRange(min=1), help="Samples from which the encoder chooses packs.")
@click.option("--choose", default="", metavar="FILE", help="Choose the samples that this file of keys names.")
@click.option(
    "--run", multiple=True, metavar="FILE", help="A saved state or debug log of a run, or a folder of them; repeatable."
)
@click.option("--loss", default="", metavar="FILE", help="The loss of the run: a CSV file, or files of TensorBoard.")
@click.option("--loss-name", default="", metavar="NAME", help="Its column or tag, if it is not called loss.")
@file_options
def view(path: str, port: int, opens: bool, batch_size: int, **given: Any) -> None:
    """Show the dataset, the metadataset (.yaml), or the .jsonl file at PATH as a page in your browser.

    The page is served on this machine alone, for the address that is printed, until Ctrl-C. Nothing of the dataset is
    changed.
    """
    for package in ("jinja2", "starlette", "uvicorn"):
        import_extra(package, "The page", "view")
    from energon_dali.view.app import serve
    from energon_dali.view.catalog import ViewOptions
    from energon_dali.view.site import Site

    options = ViewOptions(path, batch_size=batch_size or None, **given)
    serve(Site(options), port, lambda address: _announce(address, opens))


def _announce(address: str, opens: bool) -> None:
    click.echo(f"{address}\nThis address is for you alone. Ctrl-C ends the page.")
    if opens:
        click.launch(address)
