"""The train command: `python -m energon_dali.tasks.train +task=vision/igpt +dataset=vision/igpt/cifar`.

Its command line is Hydra's, with messages in place of tracebacks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError, DatasetError, StateError, StorageError
from energon_dali.tasks import check_extra
from energon_dali.tasks.composition import CONF, check_groups, explain_refusal, own_configs
from energon_dali.tasks.training import run

if TYPE_CHECKING:
    from omegaconf import DictConfig

_STARTED: list[bool] = []
"""Not empty once the config was composed."""


def command() -> None:
    """Runs the command line of the process: what the user got wrong ends it with a message and exit status 1.

    HYDRA_FULL_ERROR=1 shows the traceback.
    """
    try:
        check_extra()
    except ConfigError as error:
        sys.exit(f"Error: {error}")
    import hydra

    given = sys.argv[1:]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-dir", "-cd")
    parsed, others = parser.parse_known_args(given)
    overrides = [each for each in others if not each.startswith("-")]
    try:
        check_groups(overrides, parsed.config_dir)
    except ConfigError as error:
        sys.exit(f"Error: {error}")
    sys.argv[1:] = [*given, *_quiet_rank(given)]
    warnings.filterwarnings("default", "trainer.gpus=", DeprecationWarning)
    # These speak of how Lightning works inside; the folder is not empty because Hydra wrote the config there.
    warnings.filterwarnings("ignore", "Experiment logs directory .* exists and is not empty")
    warnings.filterwarnings("ignore", ".*isinstance\\(treespec, LeafSpec\\)")
    try:
        with own_configs(parsed.config_dir):
            hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(_run)()
    except SystemExit as exit_:
        if exit_.code == 1 and not _STARTED and not _shows_everything():
            explained = explain_refusal(overrides, parsed.config_dir)
            sys.stderr.write(f"{explained}\n" if explained else "")
        raise


def _run(cfg: DictConfig) -> dict[str, float]:
    """Runs what Hydra composed."""
    _STARTED.append(True)
    try:
        return run(cfg).metrics
    except SystemExit as exit_:
        # Lightning ends a run on SIGTERM with status 0, which a scheduler takes for a run that is done.
        sys.exit(128 + signal.SIGTERM if exit_.code is None else exit_.code)
    except Exception as error:
        if _shows_everything() or not _is_for_the_user(error):
            raise
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(1)


def _shows_everything() -> bool:
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def _is_for_the_user(error: Exception) -> bool:
    """Returns whether an error says something that can be put right without its traceback."""
    if isinstance(error, ConfigError | DatasetError | StateError | StorageError):
        return True
    exceptions = sys.modules.get("lightning.fabric.utilities.exceptions")
    return exceptions is not None and isinstance(error, exceptions.MisconfigurationException)


def _quiet_rank(given: list[str]) -> list[str]:
    """Returns overrides for ranks under torchrun other than 0, so that they leave no folder of their own.

    Each process would name its folder by its own clock.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0":
        return []
    named = any(override.startswith("hydra.run.dir=") for override in given)
    folder = [] if named else ["hydra.run.dir=."]
    return [*folder, "hydra.output_subdir=null", "hydra/job_logging=stdout"]


if __name__ == "__main__":
    command()
