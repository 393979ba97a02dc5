"""The `energon-dali` command."""

from __future__ import annotations
