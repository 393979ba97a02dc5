"""Forks a test's process although it has threads, about which Python 3.12 and later warn."""

from __future__ import annotations

import os
import warnings


def fork() -> int:
    """Returns 0 in the child, which may use nothing that a thread of the parent holds, and its pid in the parent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
