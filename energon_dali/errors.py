"""The exceptions of energon_dali.

    Exception
    ├── EnergonDaliError
    │   ├── ConfigError (also ValueError)      an argument or a setting is invalid
    │   │   ├── ArgumentError (also TypeError) a call has an unknown argument, too many or too few
    │   │   ├── LayoutError                    ranks x workers does not divide the number of streams
    │   │   └── DeviceError                    the requested device does not exist
    │   ├── DatasetError                       something is wrong with the files of a dataset
    │   │   ├── EmptyDatasetError              a split part has no sample
    │   │   ├── DatasetFormatError             a file of `.nv-meta` or an index is damaged
    │   │   ├── ShardError                     a shard changed, shrank or vanished since it was indexed
    │   │   ├── FileMissingError (also KeyError)  a store has no file of that name
    │   │   └── UntrustedCodeError             the dataset names or contains code, and the user did not allow it
    │   ├── StorageError                       a path or URL could not be read or written, retries included
    │   │   └── StoreUnavailableError          a store returned only errors for too long
    │   ├── DecodeError                        one part of one sample could not be decoded
    │   ├── DeviceFailedError                  a device failed, or its memory is full
    │   ├── StateError                         a saved state does not fit what it is restored into
    │   ├── SampleException                    something failed for a sample
    │   │   └── FatalSampleError               a hook failed too often in a row, or permanently
    │   └── WorkerError                        a worker process failed
    │       ├── WorkerDiedError                a worker process ended unexpectedly
    │       └── WatchdogTimeoutError           no batch arrived for longer than the watchdog allows
    └── SkipSample                             raised by a hook of the user to drop a sample silently

Every message says what was given, what is allowed, and what to do.
"""

from __future__ import annotations

import re

from typing_extensions import Self

_DOUBLED_STOP = re.compile(r"(?<=[^\s./])\.\.(?=\s|$)")
"""Two full stops at the end of a sentence; not an ellipsis, and not the end of a path."""


class EnergonDaliError(Exception):
    """Base class of all errors that this package raises deliberately.

    Messages quote other messages, which may end with a full stop of their own: two full stops are shown as one.
    """

    location: object = None
    """Where a metadataset names what is wrong: the message begins with it. None elsewhere."""

    def __str__(self) -> str:
        text = str(self.args[0]) if len(self.args) == 1 else super().__str__()
        return _DOUBLED_STOP.sub(".", text if self.location is None else f"{self.location}: {text}")


class ConfigError(EnergonDaliError, ValueError):
    """An argument or a setting is invalid."""


class ArgumentError(ConfigError, TypeError):
    """A call has an argument that does not exist, or lacks one; the message suggests the closest name."""


class LayoutError(ConfigError):
    """The product of ranks and workers does not divide the number of streams."""


class DeviceError(ConfigError):
    """The requested device does not exist on this machine, or this installation does not support it."""


class DatasetError(EnergonDaliError):
    """Something is wrong with the files of a dataset."""


class EmptyDatasetError(DatasetError):
    """A part of a split has no sample."""


class DatasetFormatError(DatasetError):
    """A configuration or index file of a dataset is damaged."""


class ShardError(DatasetError):
    """A shard changed, shrank or vanished since it was indexed.

    Args:
        message: The complete message; it names the shard.
        shard: Name of the shard within its dataset.
    """

    def __init__(self, message: str, shard: str = "") -> None:
        super().__init__(message, shard)
        self.shard = shard

    def __str__(self) -> str:
        return _DOUBLED_STOP.sub(".", str(self.args[0]))


class FileMissingError(DatasetError, KeyError):
    """A store has no file of that name."""


class UntrustedCodeError(DatasetError):
    """The dataset names code to import without `allow_imports=True`, or contains code without `allow_code=True`."""


class StorageError(EnergonDaliError):
    """A path or URL could not be read or written, retries included."""


class StoreUnavailableError(StorageError):
    """A store (a mount, a web server, a bucket) returned only errors for too long; never caused by a sample.

    It ends the run. The loader can be iterated again afterwards, and continues after the last delivered batch.
    """


class DecodeError(EnergonDaliError):
    """One part of one sample could not be decoded.

    Args:
        reason: What was wrong, in words.
        format: Format of the data, such as "jpeg"; "" if unknown.
        route: The decoder that raised it: "screen", "dali-cpu", "dali-gpu", "pil", "pyav", "basic".
    """

    def __init__(self, reason: str, format: str = "", route: str = "") -> None:
        super().__init__(reason, format, route)
        self.reason = reason
        self.format = format
        self.route = route

    def __str__(self) -> str:
        details = ", ".join(part for part in (self.format, self.route) if part)
        return f"{self.reason} ({details})" if details else self.reason


class DeviceFailedError(EnergonDaliError, RuntimeError):
    """A device failed, or its memory is full; never caused by a sample."""


class StateError(EnergonDaliError):
    """A saved state does not fit what it is restored into."""


class SampleException(EnergonDaliError):  # noqa: N818 - the name in Energon
    """Something failed for a sample. Hooks may raise it."""

    @classmethod
    def from_sample(cls, sample: object, message: str = "") -> Self:
        """Returns the error that names a sample.

        Args:
            sample: A sample, batch or crude dict.
            message: What is wrong with it.
        """
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        name = f"{type(sample).__name__} without a key" if key is None else str(key)[:500]
        return cls(f"Sample {name} failed{': ' if message else '.'}{message}")

    @classmethod
    def from_sample_key(cls, sample_key: str) -> Self:
        """Returns the error that names a sample by its key."""
        return cls(f"Sample {sample_key} failed.")


class FatalSampleError(SampleException):
    """A hook failed too often in a row, or in a way that would repeat for every sample."""


class WorkerError(EnergonDaliError):
    """A worker process failed."""


class WorkerDiedError(WorkerError):
    """A worker process ended unexpectedly; the message has its exit code or signal."""


class WatchdogTimeoutError(WorkerError):
    """No batch arrived for longer than the watchdog allows."""


class SkipSample(Exception):  # noqa: N818 - the name in Energon
    """Raised by a user's hook to drop the current sample; silent and not counted as a failure."""


IgnoreSample = SkipSample
"""The older name of `SkipSample`."""
