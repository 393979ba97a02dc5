"""A module that ends the process when imported, like a broken library."""

from __future__ import annotations

import os
import signal

os.kill(os.getpid(), signal.SIGSEGV)
