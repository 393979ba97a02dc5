"""Runs a file system by FUSE, and says what is missing where that cannot work."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

from energon_dali.cli.mount.dataset_files import DatasetFiles
from energon_dali.errors import ConfigError

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
