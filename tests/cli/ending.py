"""A module whose import ends the process, as a broken library does."""

from __future__ import annotations

import os
import signal

os.kill(os.getpid(), signal.SIGSEGV)
