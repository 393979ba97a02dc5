"""Where the parts of samples are: scanning tars, the files that store the result, and the index that looks parts up."""

from __future__ import annotations
