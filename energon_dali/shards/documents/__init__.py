"""The one place where files that others wrote are read: documents, indices and databases, each within limits.

Whatever is wrong with such a file becomes an error of this package that names the file. Nothing of it is run.
"""

from __future__ import annotations
