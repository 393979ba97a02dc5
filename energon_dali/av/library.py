"""The door to PyAV: imported when first used, refused where it cannot do what is asked of it."""

from __future__ import annotations

from types import ModuleType

from energon_dali.errors import DeviceError

LEAST_PYAV = 18
"""Older ones do not tell packets of cover pictures apart, nor the tables of MP4, nor name the colours of BT.2020."""


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
        if int(av.__version__.partition(".")[0]) >= LEAST_PYAV:
            return av
        found = f"this is PyAV {av.__version__}"
    raise DeviceError(
        f"Videos and sounds need PyAV {LEAST_PYAV}, and {found}. Install it with pip install "
        f"'av>={LEAST_PYAV},<{LEAST_PYAV + 1}'; it comes for Python 3.11 and newer."
    )
