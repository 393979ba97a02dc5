"""The door to PyAV: imported when first used, refused where it cannot do what is asked of it."""

from __future__ import annotations

import re
from types import ModuleType

from energon_dali.errors import DeviceError

LEAST_PYAV = (17, 1)
"""The oldest that the tests have run with; 17.0 and older cannot open a clip."""


def load_pyav() -> ModuleType:
    """Returns the module av.

    Raises:
        DeviceError: PyAV is not installed or too old.
    """
    try:
        import av
    except ImportError as error:
        found = f"it cannot be imported ({error})"
    else:
        if tuple(map(int, re.findall(r"\d+", av.__version__)[:2])) >= LEAST_PYAV:
            return av
        found = f"this is PyAV {av.__version__}"
    raise DeviceError(
        f"Videos and sounds need PyAV 17.1 or 18, and {found}. Install it with pip install 'av>=17.1,<19'."
    )
