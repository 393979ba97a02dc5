"""Buckets, opened once per process with obstore, and its errors in the terms of this package."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import urllib3

from energon_dali.errors import StorageError
from energon_dali.shards.storage import aws, gcs
from energon_dali.shards.storage.forks import drop_in_child, load_obstore, mark_in_use
from energon_dali.shards.storage.store import current_scope

T = TypeVar("T")

SCHEMES = ("s3://", "gs://", "az://")

PIECE_BYTES = 64 << 20
"""Largest request."""
_SLOWEST_BYTES_PER_SECOND = 200_000
"""A request that is slower has failed."""

_VARIABLES = {
    "s3": aws.VARIABLES,
    "gs": gcs.VARIABLES,
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT", "AZURE_SKIP_SIGNATURE"),
}
_HOW_TO_SET = {
    "s3": "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and AWS_ENDPOINT_URL and AWS_REGION.",
    "gs": "Check GOOGLE_APPLICATION_CREDENTIALS; for a public bucket set GOOGLE_SKIP_SIGNATURE=true.",
    "az": "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; for a public container set "
    "AZURE_SKIP_SIGNATURE=true.",
}

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_REGION = re.compile(r"<Region>([^<]*)</Region>")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
)
"""Codes of S3 for credentials that are no longer valid."""
_LOOK_SECONDS = 1.0
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_TRANSIENT_STATUS = frozenset({408, 425, 429})


class Access(Protocol):
    """How a bucket is reached."""

    @property
    def check_seconds(self) -> float:
        """After how many seconds `renew` is to be called."""

    def renew(self, refused: bool) -> bool:
        """Looks for newer credentials; returns whether there are any."""

    def move_to(self, region: str) -> bool:
        """Uses another region; returns False if it is the current one."""

    @property
    def endpoint(self) -> str | None:
        """URL of the server, if it is not the provider's own."""

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        """Opens the bucket."""


class _AzureAccess:
    """A container whose settings obstore itself finds, and whose credentials it renews.

    Args:
        container: Its name.
    """

    check_seconds = float("inf")
    endpoint: str | None = None

    def __init__(self, container: str) -> None:
        self._container = container

    def renew(self, refused: bool) -> bool:
        return False

    def move_to(self, region: str) -> bool:
        return False

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        if os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://"):
            client = {**client, "allow_http": True}
        return obstore.store.AzureStore(self._container, client_options=client, retry_config=retry)


_ACCESS: dict[str, Callable[[str], Access]] = {"s3": aws.S3Access, "gs": gcs.GoogleAccess, "az": _AzureAccess}


class Bucket:
    """A bucket that this process has opened. Thread-safe; recreates its connections after a fork.

    Args:
        scheme: "s3", "gs" or "az".
        name: Name of the bucket.

    Raises:
        StorageError: The settings are incomplete.
    """

    def __init__(self, scheme: str, name: str) -> None:
        self.url = f"{scheme}://{name}"
        self._scheme = scheme
        self._access: Access = _ACCESS[scheme](name)
        self._name = name
        self._stores: dict[float, Any] = {}
        """By the timeout of the policy."""
        self._has_worked = False
        self._looked_at = float("-inf")
        """When newer credentials were last looked for because the server refused the current ones."""
        self.after_fork()
        drop_in_child(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._stores = {}
        self._check_at = time.monotonic() + self._access.check_seconds

    def call(self, request: Callable[..., T], url: str, *arguments: Any) -> T:
        """Returns `request(obstore, store, *arguments)`, after one attempt for each set of credentials that there is.

        Args:
            request: Sends one request.
            url: The object, for messages.
            arguments: Passed on.

        Raises:
            FileNotFoundError: There is no such object.
            PermissionError: The server refuses.
            ConnectionError: The server did not answer, or is not available now.
            StorageError: The request or the settings are wrong.
        """
        while True:
            seconds = current_scope().policy.request_seconds
            store = self._stores.get(seconds)
            if store is None or time.monotonic() >= self._check_at:
                store = self._open(seconds, url)
            try:
                found = request(load_obstore(), store, *arguments)
            except FileNotFoundError as error:
                raise self._missing(error, url) from error
            except (OSError, StorageError):
                raise
            except Exception as error:
                if self._is_settled(error, seconds, store):
                    continue
                raise self._translated(error, url) from error
            self._has_worked = True
            return found

    def _open(self, seconds: float, url: str) -> Any:
        """Returns the store for a timeout; looks for newer credentials when it is time."""
        obstore = load_obstore()
        with self._lock:
            if time.monotonic() >= self._check_at:
                # If it fails, the current ones may still be valid; if they are not, the server will say so.
                with contextlib.suppress(StorageError):
                    if self._access.renew(refused=False):
                        self._stores.clear()
                self._check_at = time.monotonic() + self._access.check_seconds
            store = self._stores.get(seconds)
            if store is None:
                mark_in_use()
                silent = timedelta(seconds=max(0.1, seconds / 3))
                client = {
                    "connect_timeout": silent,
                    "read_timeout": silent,
                    "timeout": timedelta(seconds=seconds + PIECE_BYTES / _SLOWEST_BYTES_PER_SECOND),
                }
                try:
                    # Retries are ours: a client's own would be neither counted nor bounded by the policy.
                    store = self._access.open(obstore, client, {"max_retries": 0, "retry_timeout": timedelta(0)})
                except Exception as error:
                    raise self._wrong_settings(url, error) from error
                self._stores[seconds] = store
            return store

    def _is_settled(self, error: Exception, seconds: float, store: Any) -> bool:
        """Returns whether the request can be repeated at once, with newer credentials or in another region."""
        text = str(error)
        code = _first(_CODE, text)
        if "redirect without LOCATION" in text or code == "AuthorizationHeaderMalformed":
            with self._lock:
                if self._stores.get(seconds) is not store:  # another thread was faster
                    return True
                moved = self._access.move_to(_first(_REGION, text) or self._ask_for_region())
                if moved:
                    self._stores.clear()
                return moved
        if _first(_STATUS, text) in ("401", "403") or _has_expired(text):
            with self._lock:
                if self._stores.get(seconds) is not store:
                    return True
                now = time.monotonic()
                if now - self._looked_at < _LOOK_SECONDS and not _has_expired(text):
                    return False  # for a denied object, the files are not read again with every request
                self._looked_at = now
                try:
                    renewed = self._access.renew(refused=True)
                except StorageError:
                    if self._has_worked:
                        return False
                    raise
                if renewed:
                    self._stores.clear()
                return renewed
        return False

    def _ask_for_region(self) -> str:
        """Returns the region of the bucket, "" if the server does not say."""
        endpoint = self._access.endpoint or "https://s3.amazonaws.com"
        try:
            answer = urllib3.request("HEAD", f"{endpoint}/{self._name}", retries=False, timeout=10.0, redirect=False)
        except urllib3.exceptions.HTTPError:
            return ""
        return str(answer.headers.get("x-amz-bucket-region", ""))

    def _translated(self, error: Exception, url: str) -> Exception:
        """Returns an error of obstore as one that `with_retries` knows."""
        text = str(error)
        status = int(_first(_STATUS, text) or 0)
        said = _concise(text)
        if _has_expired(text) and self._has_worked:
            return ConnectionError(said)  # they worked before: wait for whoever renews them
        if status in (401, 403) or _has_expired(text) or "lacked" in text[:24]:
            settings = _HOW_TO_SET[self._scheme].rstrip(".")
            return PermissionError(f"{said} (some servers say this of missing objects too). {settings}")
        if status in _TRANSIENT_STATUS or status >= 500:
            return ConnectionError(said)
        if "redirect without LOCATION" in text:
            return StorageError(f"Could not reach {url}: the bucket is in another region. Set AWS_REGION to it.")
        if "NotPartial" in text:
            return StorageError(
                f"Could not read {url}: the server does not answer range requests. Copy the dataset to another store, "
                "or to a local disk."
            )
        if status or isinstance(error, (TypeError, ValueError)) or "builder error" in text or "ertificate" in text:
            return self._wrong_settings(url, error)
        return ConnectionError(said)

    def _missing(self, error: FileNotFoundError, url: str) -> Exception:
        if _first(_CODE, str(error)) in _NO_BUCKET:
            return StorageError(f"Could not reach {url}: there is no bucket {self.url}. {_HOW_TO_SET[self._scheme]}")
        return FileNotFoundError(_concise(str(error)))

    def _wrong_settings(self, url: str, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        return StorageError(f"Could not reach {url}: {_concise(str(error))}. {_HOW_TO_SET[self._scheme]}")


_buckets: dict[tuple[str, str, tuple[str | None, ...]], Bucket] = {}


def open_bucket(url: str) -> tuple[Bucket, str]:
    """Returns the bucket of a URL, the same object for the same settings, and the key inside it.

    Raises:
        StorageError: The URL names no bucket, or the settings are incomplete.
    """
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    if not name:
        raise StorageError(f"{url} names no bucket. Give {scheme}://BUCKET/PATH.")
    identity = scheme, name, tuple(map(os.environ.get, _VARIABLES[scheme]))
    bucket = _buckets.get(identity)
    if bucket is None:
        bucket = _buckets.setdefault(identity, Bucket(scheme, name))
    return bucket, key


def _has_expired(text: str) -> bool:
    """Returns whether S3 says that credentials are no longer valid; of a HEAD it does so by a 400 without a code."""
    code = _first(_CODE, text)
    return code in _EXPIRED or (not code and "Error performing HEAD" in text and _first(_STATUS, text) == "400")


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _concise(text: str) -> str:
    """Returns the message of obstore without its dump of structures, and with the cause at the end of that."""
    message, _, dump = text.partition("\n\nDebug source:")
    code = _first(_CODE, message)
    message = f"{message.partition('<?xml')[0].partition('<Error>')[0].rstrip(': ')}{f' ({code})' if code else ''}"
    causes = _CAUSE.findall(dump)
    if causes:
        return f"{message}: {causes[-1]}"
    return f"{message}: it timed out" if "TimedOut" in dump else message
