"""What commands share about the dataset that they are given: its kind, its options, and how it is opened.

Among the options is `--encoder module:Class`, which names a task encoder.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from energon_dali.cli.progress_bar import open_bar
from energon_dali.errors import ConfigError
from energon_dali.metadataset.document import YAML_SUFFIXES
from energon_dali.plan.balance import PER
from energon_dali.plan.global_step import UNEVEN
from energon_dali.plan.measured import TOKENS

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset


def is_jsonl(path: str) -> bool:
    """Returns whether a command was given a JSONL file, by its name."""
    return path.rstrip("/").endswith(".jsonl")


def is_metadataset(path: str) -> bool:
    """Returns whether a path names a metadataset."""
    return path.endswith(YAML_SUFFIXES)


def all_parts(path: str, options: dict[str, Any]) -> tuple[str, ...]:
    """Returns the parts of the split of the dataset at a path.

    Args:
        path: A prepared folder, a metadataset or a JSONL file.
        options: Keyword arguments of `WebdatasetFolder`.

    Raises:
        DatasetFormatError: It is not prepared, or its files are invalid.
        StorageError: They cannot be read.
    """
    from energon_dali.metadataset.loader import load_dataset
    from energon_dali.shards import WebdatasetFolder

    if is_jsonl(path):
        return ("train",)
    if is_metadataset(path):
        return tuple(getattr(load_dataset(path), "split_parts", ()))
    return WebdatasetFolder(path, **options).split_parts


def find_object(name: str, option: str) -> Any:
    """Returns what `module:name` names; modules in the current folder are found as well.

    Args:
        name: Such as "training.encoder:Encoder".
        option: The option that was given, for messages.

    Raises:
        ConfigError: It cannot be imported, or the module has no such name.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{option} {name} is invalid: give MODULE:NAME, such as training.encoder:Encoder.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ConfigError(
            f"{option} {name}: importing {module} failed with {type(error).__name__}: {error}. Run the command in the "
            "folder of the module, or set PYTHONPATH."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{option} {name}: {getattr(found, '__name__', found)} has no {part!r}.")
        found = getattr(found, part)
    return found


def find_encoder(name: str | None) -> Any:
    """Returns the task encoder that an option names, as `view --encoder` finds it; None for None.

    Raises:
        ConfigError: It cannot be imported, or does not name a task encoder that can be made without arguments.
    """
    if name is None:
        return None
    from energon_dali.view.encoder_session import load_encoder  # imported here: other commands start without it

    return load_encoder(name)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def add_options(*options: Callable[[FunctionT], FunctionT]) -> Callable[[FunctionT], FunctionT]:
    """Returns a decorator that adds options to a command, in their order."""

    def decorate(command: FunctionT) -> FunctionT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


code_options = add_options(
    click.option(
        "--allow-imports", is_flag=True, help="Import classes and functions of other packages that the dataset names."
    ),
    click.option(
        "--allow-code", is_flag=True, help="Run code that is in the dataset: sample_loader.py, pickled parts."
    ),
)
"""Adds --allow-imports and --allow-code to a command."""

file_options = add_options(
    click.option("--dataset-config", help="Name of the dataset configuration, if not dataset.yaml."),
    click.option("--split-config", help="Name of the split file, if not split.yaml."),
    code_options,
)
"""Adds --dataset-config, --split-config and those of `code_options` to a command."""


@contextmanager
def counting_bar(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar on stderr, if what happens inside takes more than two seconds.

    Args:
        what: What is done.
        unit: What is counted.

    Yields:
        Takes the number of units that were done since the last call, and the number of all.
    """
    with open_bar(desc=what, unit=unit, unit_scale=True, delay=_SILENT_SECONDS) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        yield progress


_SILENT_SECONDS = 2
_OF_TRAINING = (
    "shuffle_buffer_size",
    "max_samples_per_sequence",
    "shuffle_over_epochs_multiplier",
    "uneven",
    "blend_by",
    "virtual_epoch_length",
)
"""Options that validation does not have."""
_COUNT = click.IntRange(min=1)

dataset_options = add_options(
    click.option("--split-part", help="Part of the split. [default: train, or val with --validation]"),
    click.option("--validation", is_flag=True, help="Open it as get_val_dataset does: in file order, one epoch."),
    click.option("--batch-size", type=_COUNT, help="Samples per batch; without it, single samples."),
    click.option("--batch-drop-last", is_flag=True, help="Drop the smaller batch at the end of an epoch."),
    click.option("--shuffle-buffer-size", type=click.IntRange(min=0), help="Window of the sample shuffle."),
    click.option("--max-samples-per-sequence", type=_COUNT, help="Most samples that are read in file order."),
    click.option("--parallel-shard-iters", type=_COUNT, help="Slices of a stream that are read in turn."),
    click.option("--shuffle-over-epochs-multiplier", type=int, help="Epochs whose slices are shuffled together."),
    click.option("--packing-buffer-size", type=_COUNT, help="Samples from which the encoder chooses packs."),
    click.option("--virtual-epoch-length", type=click.IntRange(min=0), help="Batches per rank and virtual epoch."),
    click.option("--limit", type=_COUNT, help="With --validation: batches per rank and epoch."),
    click.option("--global-batch-size", type=_COUNT, help="Samples per step of the whole job."),
    click.option(
        "--uneven",
        type=click.Choice(UNEVEN),
        help="With --global-batch-size: what happens if the ranks cannot share it equally. [default: error]",
    ),
    click.option(
        "--blend-by",
        type=click.Choice([TOKENS]),
        help="Unit of the weights of a metadataset. With --global-batch-size, by measured tokens. [default: samples]",
    ),
    click.option(
        "--packs",
        metavar="LENGTH",
        help="With --global-batch-size, which then counts packs: pack samples by their measured lengths. MODULE:NAME "
        "names a PlannedPacks of yours.",
    ),
    click.option(
        "--balance",
        metavar="MEASURE",
        help="With --global-batch-size: deal so that no rank waits, by a measure such as tokens. MODULE:NAME names a "
        "Balance, or a cost, of yours.",
    ),
    click.option(
        "--balance-per",
        type=click.Choice(PER),
        help="With --balance: where ranks wait for each other. [default: step]",
    ),
    click.option("--allow-estimates", is_flag=True, help="With --balance: estimate what was not measured."),
    click.option("--no-repeat", is_flag=True, help="End after one epoch."),
    click.option("--seed", type=int, default=0, show_default=True, help="The seed_offset of WorkerConfig."),
    click.option("--num-streams", type=_COUNT, help="Streams of the job. [default: 4 per rank, or one per worker]"),
    click.option("--encoder", metavar="MODULE:NAME", help="Your task encoder: a class, instance or function."),
    code_options,
)
"""Adds the options of a dataset to a command."""


def open_dataset(
    path: str, given: dict[str, Any], *, world_size: int = 1, num_workers: int | None = None, encoder: Any = None
) -> SavableDataset[Any]:
    """Returns the dataset of a command's options.

    Args:
        path: The dataset, metadataset or JSONL.
        given: The values of the options that `dataset_options` added.
        world_size: Number of ranks; the dataset is that of rank 0.
        num_workers: Workers per rank; None is none, with 4 streams per rank.
        encoder: Used in place of what --encoder names.

    Raises:
        ConfigError: An option is invalid.
        DatasetError: The dataset cannot be read.
    """
    # Imported only here: the other commands start without the loader.
    from energon_dali.assembly.datasets import get_train_dataset, get_val_dataset
    from energon_dali.worker_config import WorkerConfig

    options = {name: value for name, value in given.items() if value is not None and value is not False}
    streams = options.pop("num_streams", None)
    if streams is None and num_workers is None and "global_batch_size" not in options:
        streams = 4 * world_size
    config = WorkerConfig(
        rank=0,
        world_size=world_size,
        num_workers=num_workers or 0,
        num_streams=streams,
        seed_offset=options.pop("seed", 0),
    )
    if encoder is None:
        encoder = find_encoder(options.pop("encoder", None))
    options.pop("encoder", None)
    if "packs" in options and given.get("encoder") is None:
        raise ConfigError(
            f"--packs {options['packs']} needs --encoder: the task encoder that measured the samples, and builds packs."
        )
    _make_packs_and_balance(options)
    repeat = not options.pop("no_repeat", False)
    if not options.pop("validation", False):
        if "limit" in options:
            raise ConfigError("--limit is an option of validation: give --validation, or --virtual-epoch-length.")
        return get_train_dataset(path, worker_config=config, task_encoder=encoder, repeat=repeat, **options)
    wrong = [name for name in _OF_TRAINING if name in options]
    if wrong:
        flags = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise ConfigError(
            f"{flags}: validation is not shuffled, has no weights and no virtual epochs. Leave the options out."
        )
    return get_val_dataset(path, worker_config=config, task_encoder=encoder, **options)


def _make_packs_and_balance(options: dict[str, Any]) -> None:
    """Replaces the texts of --packs and --balance by what they name.

    Raises:
        ConfigError: They name something else.
    """
    from energon_dali.plan.balance import Balance
    from energon_dali.plan.costs import ColumnCost
    from energon_dali.task_encoder.planned_packs import PlannedPacks

    packs, balance, per = options.get("packs"), options.get("balance"), options.pop("balance_per", None)
    if packs is not None:
        if packs.isdecimal():
            options["packs"] = PlannedPacks(int(packs))
        elif ":" in packs:
            options["packs"] = find_object(packs, "--packs")
        else:
            raise ConfigError(f"--packs {packs} is invalid: give the length of a pack, or MODULE:NAME.")
    if balance is not None:
        found = find_object(balance, "--balance") if ":" in balance else ColumnCost(balance)
        found = found if isinstance(found, Balance) else Balance(found)
        options["balance"] = found if per is None else replace(found, per=per)
    elif per is not None:
        raise ConfigError(f"--balance-per {per} says where ranks wait, and nothing is balanced: give --balance.")
