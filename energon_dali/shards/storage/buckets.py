"""Buckets, opened once per process with obstore, and its errors in the terms of this package."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import urllib3

from energon_dali.errors import StorageError
from energon_dali.shards.storage import aws, gcs
from energon_dali.shards.storage.access import Access
from energon_dali.shards.storage.forks import drop_in_child, load_obstore, mark_in_use, never_finalise
from energon_dali.shards.storage.redirects import stay_on, was_redirected
from energon_dali.shards.storage.store import current_scope

T = TypeVar("T")

SCHEMES = ("s3://", "gs://", "az://")

SMALL_BYTES = 4 << 20
"""Most bytes of a request that has the shorter time limit."""
PIECE_BYTES = 64 << 20
"""Largest request."""
_SLOWEST_BYTES_PER_SECOND = 200_000
"""A request for SMALL_BYTES or PIECE_BYTES that is slower has failed."""

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

_WHERE_IT_IS = {
    "s3": "Set AWS_REGION to the region of the bucket, or AWS_ENDPOINT_URL to the server that has it; for a public "
    "bucket set AWS_SKIP_SIGNATURE=true.",
    "gs": "Set STORAGE_EMULATOR_HOST to the server that has the bucket.",
    "az": "Set AZURE_STORAGE_ENDPOINT to the server that has the container; for a public container set "
    "AZURE_SKIP_SIGNATURE=true.",
}

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_DOCUMENT = re.compile(r"[<\n]")
"""Where a document begins that the server sent."""
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_CAUSES = {
    "IncompleteMessage": "the server closed the connection",
    "Parse(": "its answer is not HTTP",
    "TimedOut": "it timed out",
}
"""Causes in a dump of structures, which have no message."""
_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
)
"""Codes of S3 for credentials that are no longer valid."""
_LOOK_SECONDS = 1.0
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_TRANSIENT_STATUS = frozenset({408, 425, 429})


class _AzureAccess(Access):
    """A container whose settings obstore itself finds, and whose credentials it renews.

    Args:
        container: Its name.
    """

    def __init__(self, container: str) -> None:
        self._container = container

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        if os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://"):
            client = {**client, "allow_http": True}
        if os.environ.get("AZURE_SKIP_SIGNATURE", "").lower() not in ("1", "true", "yes", "on"):
            client = stay_on(client, _azure_servers())
        return obstore.store.AzureStore(self._container, client_options=client, retry_config=retry)


def _azure_servers() -> list[str]:
    """Returns the URLs of the store and of the servers from which obstore may fetch credentials."""
    environment = os.environ
    prefixes = ("AZURE_", "AZURITE_", "IDENTITY_", "MSI_")
    named = [value for name, value in environment.items() if name.startswith(prefixes) and "://" in value]
    account = environment.get("AZURE_STORAGE_ACCOUNT_NAME") or environment.get("AZURE_ACCOUNT_NAME")
    accounts = [
        f"https://{account}.blob.{domain}" for domain in ("core.windows.net", "fabric.microsoft.com") if account
    ]
    if any(name in environment for name in ("AZURE_STORAGE_USE_EMULATOR", "AZURE_USE_EMULATOR")):
        accounts.append("http://127.0.0.1:10000")
    return [*named, *accounts, "https://login.microsoftonline.com", "http://169.254.169.254"]


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
        self._has_worked = False
        self.has_ranges = False
        """Whether the server has answered a range request."""
        self._looked_at = float("-inf")
        """When newer credentials were last looked for because the server refused the current ones."""
        self._begin()
        drop_in_child(self)

    def after_fork(self) -> None:
        never_finalise(self._stores.values())
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[tuple[float, int], Any] = {}
        """By the timeout of the policy, and the most bytes of a request."""
        self._check_at = time.monotonic() + self._access.check_seconds

    def call(self, request: Callable[..., T], url: str, *arguments: Any, is_large: bool = False) -> T:
        """Returns `request(obstore, store, *arguments)`, after one attempt for each set of credentials that there is.

        Args:
            request: Sends one request.
            url: The object, for messages.
            arguments: Passed on.
            is_large: Whether more than SMALL_BYTES are sent or received, at most PIECE_BYTES.

        Raises:
            FileNotFoundError: There is no such object.
            PermissionError: The server refuses.
            ConnectionError: The server did not answer, or is not available now.
            StorageError: The request or the settings are wrong.
        """
        while True:
            kind = current_scope().policy.request_seconds, PIECE_BYTES if is_large else SMALL_BYTES
            store = self._stores.get(kind)
            if store is None or time.monotonic() >= self._check_at:
                store = self._open(kind, url)
            try:
                found = request(load_obstore(), store, *arguments)
            except FileNotFoundError as error:
                raise self._missing(error, url) from error
            except (OSError, StorageError):
                raise
            except Exception as error:
                if self._is_settled(error, kind, store):
                    continue
                raise self._translated(error, url) from error
            self._has_worked = True
            return found

    def _open(self, kind: tuple[float, int], url: str) -> Any:
        """Returns the store for a kind of requests; looks for newer credentials when it is time."""
        obstore = load_obstore()
        with self._lock:
            if time.monotonic() >= self._check_at:
                # If it fails, the current ones may still be valid; if they are not, the server will say so.
                with contextlib.suppress(StorageError):
                    if self._access.renew(refused=False):
                        self._stores.clear()
                self._check_at = time.monotonic() + self._access.check_seconds
            store = self._stores.get(kind)
            if store is None:
                mark_in_use()
                seconds, most_bytes = kind
                silent = timedelta(seconds=max(0.1, seconds / 3))
                client = {
                    "connect_timeout": silent,
                    "read_timeout": silent,
                    "timeout": timedelta(seconds=seconds + most_bytes / _SLOWEST_BYTES_PER_SECOND),
                }
                try:
                    # Retries are ours: a client's own would be neither counted nor bounded by the policy.
                    store = self._access.open(obstore, client, {"max_retries": 0, "retry_timeout": timedelta(0)})
                except Exception as error:
                    raise self._wrong_settings(url, error) from error
                self._stores[kind] = store
            return store

    def _is_settled(self, error: Exception, kind: tuple[float, int], store: Any) -> bool:
        """Returns whether the request can be repeated at once, with newer credentials or in another region."""
        text = str(error)
        code = _first(_CODE, text)
        if _is_elsewhere(text) or code == "AuthorizationHeaderMalformed":
            with self._lock:
                if self._stores.get(kind) is not store:  # another thread was faster
                    return True
                moved = self._access.move_to(_first(_REGION, text) or self._ask_for_region())
                if moved:
                    self._stores.clear()
                return moved
        if _first(_STATUS, text) in ("401", "403") or _has_expired(text):
            with self._lock:
                if self._stores.get(kind) is not store:
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
        """Returns an error of obstore as one that `with_retries` handles."""
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
        if was_redirected(text) or 300 <= status < 400:
            return StorageError(
                f"Could not reach {url}: the server redirects the request to another host, and credentials are "
                f"not sent there. {_WHERE_IT_IS[self._scheme]}"
            )
        if "redirect without LOCATION" in text:
            return StorageError(f"Could not reach {url}: the bucket is in another region. Set AWS_REGION to it.")
        if "TooManyRedirects" in text:
            return StorageError(f"Could not reach {url}: the server redirects in a loop. {_HOW_TO_SET[self._scheme]}")
        if "NotPartial" in text and self.has_ranges:
            return ConnectionError("the server sent a document instead of the range")
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


def _is_elsewhere(text: str) -> bool:
    """Returns whether the server says that the bucket is in another region, or on another host."""
    return "redirect without LOCATION" in text or was_redirected(text) or _first(_STATUS, text).startswith("3")


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
    message = _DOCUMENT.split(message, maxsplit=1)[0].rstrip(": ")
    message = f"{message} ({code})" if code else message
    causes = _CAUSE.findall(dump) or [said for name, said in _CAUSES.items() if name in dump]
    return f"{message}: {causes[-1]}" if causes else message
