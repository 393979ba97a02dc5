"""`energon-dali prepare` turns a folder of tar shards into a dataset; `prepare-media` describes the media of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from energon_dali.cli.dataset_options import is_jsonl, is_metadataset
from energon_dali.cli.dataset_wizard import choose_sample_type, make_config, parse_field_map, warn_of_lost_parts
from energon_dali.cli.media_options import check_image, media_options, progress_bar, scan_options
from energon_dali.cli.progress_bar import open_bar
from energon_dali.errors import DatasetError
from energon_dali.metadataset.loader import prepare_metadataset
from energon_dali.shards import PrepareResult, StoragePath, UnreadablePart, prepare_dataset, prepare_jsonl
from energon_dali.shards.documents.content import printable, show_count
from energon_dali.shards.index.jsonl_index import index_path
from energon_dali.shards.meta.dataset_config import (
    CRUDE,
    check_config_name,
    own_factory,
    read_dataset_config,
    write_dataset_config,
)
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import info_present
from energon_dali.shards.prepare.dataset import SHUFFLE_SEED, UNREADABLE_NAME
from energon_dali.shards.prepare.duplicate_keys import DuplicateKeysError, prefix_keys
from energon_dali.shards.prepare.media_tables import add_media_metadata
from energon_dali.shards.prepare.parallel import usable_workers
from energon_dali.shards.prepare.split_plan import find_shards, parse_ratio

SHOWN_PARTS = 10
SHOWN_UNREADABLE = 20


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """What was given on the command line."""

    progress: bool
    split_parts: tuple[str, ...]
    exclude: str | None
    num_workers: int
    shards_in_flight: int
    ray_address: str | None
    tar_index_only: bool
    shuffle_tars: bool
    media_metadata_by_glob: str | None
    media_metadata_by_header: bool
    media_metadata_by_extension: bool
    fix_duplicates: bool
    check_media: bool
    exclude_unreadable: bool
    non_interactive: bool
    split_ratio: str | None
    force_overwrite: bool
    skip_dataset_yaml: bool
    dataset_yaml_name: str
    sample_type: str | None
    field_map: str | None
    tmp_path: Path | None


@click.command("prepare")
@click.argument("path")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
@click.option(
    "--split-parts",
    multiple=True,
    metavar="NAME:REGEX",
    help="Shards of a part, such as 'train:train/{000..999}.tar'; braces expand, the rest is a regular expression.",
)
@click.option("--exclude", metavar="REGEX", help="Leave out shards whose path matches this.")
@scan_options
@click.option("--tar-index-only", is_flag=True, help="Only rebuild the indices; keep the split.")
@click.option("--shuffle-tars", is_flag=True, help="Shuffle the shards before they are split by ratio.")
@media_options
@click.option("--fix-duplicates", is_flag=True, help="If keys are not unique, rewrite the shards with unique keys.")
@click.option("--check-media/--no-check-media", default=True, help="Look at the header of every image.")
@click.option("--exclude-unreadable", is_flag=True, help="Leave samples with unreadable media out of the split.")
@click.option("--non-interactive", is_flag=True, help="Ask nothing.")
@click.option("--split-ratio", metavar="A,B,C", help="Shares of train, val and test, such as 8,1,1.")
@click.option("--force-overwrite", is_flag=True, help="Prepare again without asking.")
@click.option("--skip-dataset-yaml", is_flag=True, help="Do not write dataset.yaml.")
@click.option("--dataset-yaml-name", default="dataset.yaml", show_default=True, help="Name of dataset.yaml.")
@click.option("--sample-type", metavar="NAME", help="Such as CaptioningSample or CrudeWebdataset.")
@click.option("--field-map", metavar="JSON", help='Such as \'{"image": "jpg", "caption": "txt"}\'.')
@click.option("--tmp-path", type=click.Path(path_type=Path), help="Folder for the index while it is built.")
def prepare(path: str, **given: object) -> None:
    """Turn the tar shards in PATH into a dataset: index, check and split them; or index the joins of a metadataset.

    Writes PATH/.nv-meta and an index next to each shard. The shards do not change. A .jsonl file at PATH gets
    an index next to it.
    """
    options = PrepareOptions(**given)  # type: ignore[arg-type]
    if is_jsonl(path):
        index_jsonl(
            path,
            progress=options.progress,
            overwrite=options.force_overwrite,
            non_interactive=options.non_interactive,
        )
        return
    if is_metadataset(path):
        index_joins(path)
        return
    root = StoragePath.of(path)
    if not root.is_dir():
        raise click.ClickException(f"{root} is not a folder. Give the folder that holds the tar shards.")
    _check_type(options)
    if options.tar_index_only:
        result = _run(root, None, None, options)
        click.echo(f"Done. Indexed {show_count(sum(result.shard_counts.values()), 'sample')}.")
        _report_unreadable(root, result.unreadable, options)
        return
    if info_present(root) and not options.force_overwrite:
        if options.non_interactive:
            raise click.ClickException(
                f"{root} is already prepared, as `energon-dali pack` leaves what it writes, and can be used as it "
                "is. Give --force-overwrite to prepare it again."
            )
        if not click.confirm(f"{root} is already prepared. Prepare it again?"):
            return
    shards = find_shards(root, options.exclude)
    click.echo(f"Found {len(shards)} tar files; the first and the last are:")
    for shard in (shards[0], shards[-1]):
        click.echo(f"- {printable(shard)}")
    ratio = None if options.split_parts else parse_ratio(_ratio_text(options))
    result = _run(root, shards, ratio, options)
    _report_unreadable(root, result.unreadable, options)
    _report_split(result, ratio)
    _write_config(root, result, options)
    click.echo(f"Done. Prepared {show_count(sum(result.shard_counts.values()), 'sample')}.")


def index_jsonl(path: str, *, progress: bool, overwrite: bool, non_interactive: bool) -> None:
    """Indexes a JSONL file, and says what it found.

    Args:
        path: The file.
        progress: Show a progress bar.
        overwrite: Index it again without asking.
        non_interactive: Ask nothing.

    Raises:
        click.ClickException: It is indexed, and must not be again.
        DatasetFormatError: There is no such file, or no line in it.
        StorageError: It cannot be read, or the index not written.
    """
    if index_path(StoragePath.of(path)).is_file() and not overwrite:
        if non_interactive:
            raise click.ClickException("The file has already been prepared. Use --force-overwrite to do it again.")
        if not click.confirm("It seems the file had already been prepared. Do you want to continue?"):
            return
    with open_bar(desc="Indexing lines", unit="B", unit_scale=True, disable=not progress) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        result = prepare_jsonl(path, progress=show)
    if result.doubtful:
        numbers = ", ".join(map(str, result.first_doubtful))
        more = ", ..." if result.doubtful > len(result.first_doubtful) else ""
        click.echo(
            f"{result.doubtful:,} lines do not begin with {{ and end with }}, and will fail if they are not JSON: "
            f"{numbers}{more} (counted from 0 without blank lines).",
            err=True,
        )
    click.echo(f"Done. Prepared {show_count(result.num_samples, 'sample')}.")


def index_joins(path: str) -> None:
    """Builds the join indices of a metadataset and says so.

    Raises:
        DatasetError: It cannot be understood, or its datasets cannot be joined.
        StorageError: A file cannot be read or written.
    """
    indices = prepare_metadataset(path)
    for index in indices:
        click.echo(f"- {index}")
    click.echo("Done. The joins are indexed." if indices else "Done. There is nothing to prepare.")


def _check_type(options: PrepareOptions) -> None:
    """Rejects options that cannot become a dataset.yaml, before hours are spent on indexing."""
    check_config_name(options.dataset_yaml_name)
    if options.sample_type is not None and not options.skip_dataset_yaml:
        chosen = choose_sample_type(options.sample_type)
        if options.field_map is not None and chosen != CRUDE:
            parse_field_map(options.field_map, chosen)


def _ratio_text(options: PrepareOptions) -> str:
    if options.split_ratio is not None:
        return options.split_ratio
    if options.non_interactive:
        raise click.ClickException("--split-ratio is required with --non-interactive, or --split-parts.")
    question = 'Please enter a desired train/val/test split like "0.5, 0.2, 0.3" or "8,1,1"'
    return str(click.prompt(question, type=str))


def _run(
    root: StoragePath, shards: list[str] | None, ratio: dict[str, float] | None, options: PrepareOptions
) -> PrepareResult:
    from energon_dali.decode.media_filter import MediaFilter  # lazy: imports PIL, and `--help` should not wait for it

    media = MediaFilter.parse(
        options.media_metadata_by_glob, options.media_metadata_by_header, options.media_metadata_by_extension
    )
    if media is not None and options.tar_index_only:
        raise click.UsageError("--media-metadata-by-... cannot be combined with --tar-index-only.")
    wrong = [text for text in options.split_parts if ":" not in text]
    if wrong:
        raise click.UsageError(
            f"--split-parts {wrong[0]!r} has no colon. Write it as NAME:REGEX, such as 'train:train_.*'."
        )
    workers = usable_workers(options.num_workers)

    def attempt() -> PrepareResult:
        return prepare_dataset(
            root,
            shards=shards,
            split_ratio=ratio,
            split_patterns=[(text.partition(":")[0], text.partition(":")[2]) for text in options.split_parts] or None,
            shuffle_seed=SHUFFLE_SEED if options.shuffle_tars else None,
            num_workers=workers,
            shards_in_flight=options.shards_in_flight,
            ray_address=options.ray_address,
            check_part=check_image if options.check_media else None,
            exclude_unreadable=options.exclude_unreadable,
            media_filter=media,
            tar_index_only=options.tar_index_only,
            tmp_path=options.tmp_path,
            progress=progress_bar if options.progress else None,
        )

    try:
        return attempt()
    except DuplicateKeysError as error:
        if not options.fix_duplicates or shards is None or error.in_one_shard:
            raise
    click.echo("Keys are not unique. Rewriting the shards, with the shard's name in front of each key.")
    prefix_keys(root, shards, num_workers=workers)
    return attempt()


def _report_split(result: PrepareResult, ratio: dict[str, float] | None) -> None:
    """Says how many samples each part of the split has, and warns of parts that were asked for and have none."""
    click.echo("Split into whole shards:")
    for part, shards in result.split_parts.items():
        click.echo(
            f"- {part}: {show_count(result.split_samples[part], 'sample')} in {show_count(len(shards), 'shard')}"
        )
    empty = [part for part, count in result.split_samples.items() if not count and (ratio is None or ratio[part] > 0)]
    if empty and ratio is not None:
        shares = [share for share in ratio.values() if share > 0]
        needed = math.ceil(sum(shares) / min(shares))
        click.echo(
            f"Warning: {' and '.join(empty)} got no sample. A split takes whole shards, and there are "
            f"{len(result.shard_counts)}: this ratio needs about {needed} shards. Write more and smaller shards, "
            "choose another ratio, or name the shards of each part with --split-parts.",
            err=True,
        )
    elif empty:
        click.echo(f"Warning: {' and '.join(empty)} got no sample.", err=True)


def _report_unreadable(root: StoragePath, unreadable: list[UnreadablePart], options: PrepareOptions) -> None:
    if not unreadable:
        return
    click.echo(f"{len(unreadable):,} media parts cannot be parsed:", err=True)
    rows = [("shard", "key", "part", "reason")]
    for bad in unreadable[:SHOWN_UNREADABLE]:
        rows.append((printable(bad.shard), printable(bad.key), printable(bad.part), printable(bad.reason)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  " + "  ".join([*cells, row[3]]), err=True)
    if len(unreadable) > SHOWN_UNREADABLE:
        click.echo(f"  and {len(unreadable) - SHOWN_UNREADABLE:,} more", err=True)
    click.echo(f"All of them are listed in {root / META / UNREADABLE_NAME}.", err=True)
    if options.exclude_unreadable and not options.tar_index_only:
        click.echo("Their samples are excluded from the split.", err=True)
    else:
        click.echo("Their samples are kept; --exclude-unreadable leaves them out of the split.", err=True)


def _write_config(root: StoragePath, result: PrepareResult, options: PrepareOptions) -> None:
    names = result.part_names
    more = " and more" if len(names) > SHOWN_PARTS else ""
    click.echo(printable(f"Found the following part types in the dataset: {', '.join(names[:SHOWN_PARTS])}{more}"))
    if options.skip_dataset_yaml:
        wanted = False
    elif options.sample_type is not None:
        wanted = True
    elif options.non_interactive:
        click.echo("Skipping dataset.yaml (use --sample-type to create it).")
        wanted = False
    else:
        wanted = click.confirm("Do you want to create a dataset.yaml interactively?", default=True)
    if not wanted:
        _keep_config(root, names, options.dataset_yaml_name)
        return
    config = make_config(root, options.sample_type, options.field_map, names, interactive=not options.non_interactive)
    warn_of_lost_parts(config.get("field_map", {}), names, options.dataset_yaml_name)
    write_dataset_config(root, config, options.dataset_yaml_name)


def _keep_config(root: StoragePath, part_names: Sequence[str], name: str) -> None:
    """Says which dataset.yaml stays in use, and warns of fields that it can no longer fill."""
    if not (root / META / name).is_file():
        click.echo("You will have to add a dataset.yaml manually.")
        return
    click.echo(f"Kept the {name} that is there.")
    try:
        config = read_dataset_config(root, name, allow_imports=True)  # reads names of classes, and imports none
    except DatasetError as error:
        click.echo(f"Warning: {error}", err=True)
        return
    if own_factory(config) not in (None, CRUDE):  # the keys of a class of the user are its own
        warn_of_lost_parts(config.get("field_map", {}), part_names, name)


@click.command("prepare-media")
@click.argument("path")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
@scan_options
@media_options
@click.option(
    "--media-index/--no-media-index",
    default=True,
    help="Store where the frames of videos and the samples of audio are, so that clips are read without the rest.",
)
@click.option("--tmp-path", type=click.Path(path_type=Path), help="Folder for the table while it is built.")
def prepare_media(
    path: str,
    progress: bool,
    num_workers: int,
    media_index: bool,
    media_metadata_by_glob: str | None,
    media_metadata_by_header: bool,
    media_metadata_by_extension: bool,
    **given: Any,
) -> None:
    """Describe the media (sizes, formats, durations) of the prepared dataset or plain folder at PATH.

    Videos and audio files are also indexed. Shards that have not changed since the last time are not read again.
    """
    from energon_dali.av.media_indexing import MediaIndexer  # lazy: for the same reason as the line below
    from energon_dali.decode.media_filter import MediaFilter  # lazy: imports PIL, and `--help` should not wait for it

    media = MediaFilter.parse(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    if media is None:
        raise click.UsageError("Give one of --media-metadata-by-glob, -by-header and -by-extension.")
    shown = progress_bar if progress else None
    indexer = MediaIndexer() if media_index else None
    workers = usable_workers(num_workers)
    counts = add_media_metadata(path, media, index_media=indexer, num_workers=workers, progress=shown, **given)
    click.echo(f"Done. Described {counts.described:,} media.")
    if counts.indexed or counts.without_index:
        click.echo(f"Indexed {counts.indexed:,} of {counts.indexed + counts.without_index:,} videos and audio files.")
    for reason, count in counts.reasons.most_common():
        click.echo(f"{count:,} will be read whole: {reason}")
