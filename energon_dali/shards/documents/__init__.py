"""Reads files that others wrote, within limits: documents, indices, databases and saved states.

Anything wrong with such a file becomes an error of this package that names the file. Nothing in it is executed.
"""

from __future__ import annotations
