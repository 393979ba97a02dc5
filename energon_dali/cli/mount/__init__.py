"""`energon-dali mount`: shows a prepared dataset as a folder of files."""

from __future__ import annotations
