"""The exceptions of energon_dali.

    Exception
    ├── EnergonDaliError
    │   ├── ConfigError (also ValueError)      an argument or a setting cannot work
    │   │   ├── ArgumentError (also TypeError) a call has an argument too many, too few, or of an unknown name
    │   │   ├── LayoutError                    ranks x workers does not divide the streams
    │   │   └── DeviceError                    a device was asked for that is not there
    │   ├── DatasetError                       something is wrong with the files of a dataset
    │   │   ├── DatasetFormatError             a file of `.nv-meta` or an index cannot be understood
    │   │   ├── ShardError                     a shard changed, shrank or vanished since it was indexed
    │   │   ├── FileMissingError (also KeyError)  a store of files has none of that name
    │   │   └── UntrustedCodeError             the dataset wants to run code and the user did not allow it
    │   ├── StorageError                       a path or URL could not be read or written, retries included
    │   │   └── StoreUnavailableError          nothing could be read from a store for too long
    │   ├── DecodeError                        one part of one sample could not be decoded
    │   ├── DeviceFailedError              a device failed while it worked, or its memory is full
    │   ├── StateError                         a saved state does not fit what it is restored into
    │   ├── FatalSampleError                   a hook failed too often in a row, or in a way that never heals
    │   └── WorkerError                        a worker process failed
    │       ├── WorkerDiedError                a worker process ended without being asked to
    │       └── WatchdogTimeoutError           no batch arrived for longer than the watchdog allows
    └── SkipSample                             raised by a user's hook: drop this sample, silently

Every message says what was given, what is allowed and what to do.
"""

from __future__ import annotations


class EnergonDaliError(Exception):
    """The base of every error that this package raises on purpose."""


class ConfigError(EnergonDaliError, ValueError):
    """An argument or a setting cannot work."""


class ArgumentError(ConfigError, TypeError):
    """A call has an argument that does not exist, or lacks one; the message names the nearest there is."""


class LayoutError(ConfigError):
    """The product of ranks and workers does not divide the number of streams."""


class DeviceError(ConfigError):
    """A device was asked for that this machine or this installation does not have."""


class DatasetError(EnergonDaliError):
    """Something is wrong with the files of a dataset."""


class DatasetFormatError(DatasetError):
    """A configuration or index file of a dataset cannot be understood."""


class ShardError(DatasetError):
    """A shard changed, shrank or vanished since it was indexed.

    Args:
        message: The whole message; it names the shard.
        shard: Name of the shard inside its dataset.
    """

    def __init__(self, message: str, shard: str = "") -> None:
        super().__init__(message, shard)
        self.shard = shard

    def __str__(self) -> str:
        return str(self.args[0])


class FileMissingError(DatasetError, KeyError):
    """A store of files has none of that name."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0]) if self.args else ""


class UntrustedCodeError(DatasetError):
    """The dataset names Python code to run, and `trust_dataset_code=True` was not given."""


class StorageError(EnergonDaliError):
    """A path or URL could not be read or written, retries included."""


class StoreUnavailableError(StorageError):
    """Nothing could be read from a store (a mount, a web server, a bucket) for too long; never the fault of a sample.

    It ends the run. A loader can be iterated again afterwards: it continues after the last batch that it delivered.
    """


class DecodeError(EnergonDaliError):
    """One part of one sample could not be decoded.

    Args:
        reason: What was wrong, in words.
        format: Format of the data as far as it is known, such as "jpeg"; "" if unknown.
        route: Which decoder found out: "screen", "dali-cpu", "dali-gpu", "pil", "pyav", "basic".
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
    """A device failed while it worked, or its memory is full; never the fault of a sample."""


class StateError(EnergonDaliError):
    """A saved state does not fit what it is restored into."""


class FatalSampleError(EnergonDaliError):
    """A hook failed too often in a row, or in a way that the next sample cannot heal."""


class WorkerError(EnergonDaliError):
    """A worker process failed."""


class WorkerDiedError(WorkerError):
    """A worker process ended without being asked to; the message names its exit code or signal."""


class WatchdogTimeoutError(WorkerError):
    """No batch arrived for longer than the watchdog allows."""


class SkipSample(Exception):  # noqa: N818 - the name that users of Energon know
    """Raised by a user's hook to drop the current sample; silent and not counted as a failure."""


IgnoreSample = SkipSample
"""The older name of `SkipSample`."""
