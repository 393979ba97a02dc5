"""Where the parts of samples lie: scanning tars, the files that keep the result, and the index that answers."""

from __future__ import annotations
