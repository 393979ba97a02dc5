"""The small files of `.nv-meta`: which shards there are, how they are split, and what samples they make."""

from __future__ import annotations
