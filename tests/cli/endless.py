"""A module whose import never returns, as when a driver hangs."""

from __future__ import annotations

import threading

threading.Event().wait()
