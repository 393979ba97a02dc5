"""`energon-dali mount`: shows a prepared dataset as a folder of files, by FUSE, or says what is missing for that."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from energon_dali.cli.dataset_files import DatasetFiles
from energon_dali.cli.dataset_options import is_jsonl, is_metadataset
from energon_dali.errors import ConfigError
from energon_dali.shards import StoragePath, WebdatasetFolder

DEVICE = Path("/dev/fuse")

_LIBRARY = (
    "Install it: `apt install fuse3 libfuse3-3` on Debian and Ubuntu, `dnf install fuse3 fuse3-libs` on Fedora. "
    "FUSE_LIBRARY_PATH may name the library."
)


def load_fuse() -> ModuleType:
    """Returns the module `mfusepy`, if this machine can mount with it.

    Raises:
        ConfigError: mfusepy, libfuse or the device is missing, or may not be used; says what to install.
    """
    try:
        module = import_module("mfusepy")
    except ImportError as error:
        raise ConfigError(
            'Mounting needs the package mfusepy, which is not installed: `pip install "energon-dali[mount]"`.'
        ) from error
    except OSError as error:
        raise ConfigError(f"Mounting needs the library libfuse, which was not found ({error}). {_LIBRARY}") from error
    if not DEVICE.exists():
        raise ConfigError(
            f"Mounting needs FUSE, and this machine has no {DEVICE}. Load the kernel module (`modprobe fuse`); start a "
            "container with `--device /dev/fuse --cap-add SYS_ADMIN`."
        )
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise ConfigError(f"Mounting needs FUSE, and {DEVICE} may not be opened. Ask for access to it.")
    return module


def serve(fuse: ModuleType, files: DatasetFiles, mountpoint: Path) -> None:
    """Mounts a file system, and returns when it is unmounted.

    Args:
        fuse: What `load_fuse` returns.
        files: The file system.
        mountpoint: An existing folder.

    Raises:
        ConfigError: It cannot be mounted there.
    """
    try:
        fuse.FUSE(files, str(mountpoint), foreground=True, ro=True, fsname="energon-dali")
    except RuntimeError as error:
        raise ConfigError(
            f"FUSE could not mount at {mountpoint} (status {error}); its message is above. Mounting needs root, or "
            "fusermount3 of the package fuse3, and in a container the capability SYS_ADMIN; the folder must be yours "
            "and not be mounted already."
        ) from error


_POLL_SECONDS = 0.05


@click.command("mount")
@click.argument("path")
@click.argument("mountpoint", type=click.Path(path_type=Path))
@click.option("--detach", "-d", is_flag=True, help="Return when it is mounted, and continue in the background.")
@click.option("--sample-folders", "-s", is_flag=True, help="Make a folder of each sample.")
@click.option("--allow-slow", "-w", is_flag=True, help="Scan the shards of a dataset that has no index of its parts.")
def mount(path: str, mountpoint: Path, detach: bool, sample_folders: bool, allow_slow: bool) -> None:
    """Show the prepared dataset at PATH (a folder or a URL) as a folder MOUNTPOINT, read-only, by FUSE.

    Each shard is a folder, and each part a file in it, KEY.PART. Only what is read is fetched. Unmount it with
    `fusermount3 -u MOUNTPOINT`, or end the command.
    """
    if is_jsonl(path) or is_metadataset(path):
        raise ConfigError(f"{path} has no shards to show: give the folder of a prepared dataset of tar shards.")
    fuse = load_fuse()
    folder = WebdatasetFolder(path)
    files = DatasetFiles(folder, sample_folders=sample_folders, allow_slow=allow_slow)
    prepare_mountpoint(mountpoint, folder.root)
    if detach:
        files.destroy("/")
        options = ["--sample-folders"] * sample_folders + ["--allow-slow"] * allow_slow
        _detach([path, str(mountpoint), *options], mountpoint)
        click.echo(f"Mounted {folder.num_samples:,} samples at {mountpoint}.")
        click.echo(f"Unmount them with `fusermount3 -u {shlex.quote(str(mountpoint))}`.")
        return
    click.echo(f"Mounting {folder.num_samples:,} samples at {mountpoint}. Ctrl-C ends it.")
    serve(fuse, files, mountpoint)


def prepare_mountpoint(mountpoint: Path, root: StoragePath) -> None:
    """Makes the folder to mount at, unless it exists.

    Raises:
        ConfigError: It would hide the dataset, has files, or cannot be made.
    """
    if root.is_local and root.local.resolve().is_relative_to(mountpoint.resolve()):
        raise ConfigError(f"{mountpoint} holds the dataset {root}, which it would hide. Give another folder.")
    try:
        mountpoint.mkdir(parents=True, exist_ok=True)
        if any(mountpoint.iterdir()):
            raise ConfigError(f"{mountpoint} is not empty. Give an empty folder, or one that does not exist.")
    except OSError as error:
        raise ConfigError(f"Cannot mount at {mountpoint}: {error}.") from error


def _detach(arguments: list[str], mountpoint: Path) -> None:
    """Runs this command in a process of its own, and waits until it has mounted.

    A fork of this process would lose the threads of storage clients.

    Raises:
        ConfigError: It ended before; with its message.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "energon_dali", "mount", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        while not mountpoint.is_mount():
            if process.poll() is not None:
                output.seek(0)
                message = output.read().decode(errors="replace").strip()
                raise ConfigError(f"The process that mounts ended with status {process.returncode}: {message}")
            time.sleep(_POLL_SECONDS)
        process.returncode = 0  # it goes on, and nobody waits for it
