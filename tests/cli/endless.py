"""A module whose import never ends, as where a driver hangs."""

from __future__ import annotations

import threading

threading.Event().wait()
