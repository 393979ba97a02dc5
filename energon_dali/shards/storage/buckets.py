"""Buckets and web servers, opened once per process with obstore, and its errors in the terms of this package."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from energon_dali.errors import StorageError
from energon_dali.shards.storage.access import Access, AzureAccess, GoogleAccess, WebAccess, was_redirected
from energon_dali.shards.storage.aws import S3Access
from energon_dali.shards.storage.forks import drop_in_child, load_obstore, mark_in_use, never_finalise
from energon_dali.shards.storage.store import current_scope

T = TypeVar("T")

SMALL_BYTES = 4 << 20
"""Most bytes of a request that has the shorter time limit."""
PIECE_BYTES = 64 << 20
"""Largest request."""
_SLOWEST_BYTES_PER_SECOND = 200_000
"""A request for SMALL_BYTES or PIECE_BYTES that is slower has failed."""
_MOST_BUCKETS = 256
"""Buckets and web servers that are kept open; addresses with a query each count as one."""

_ACCESS: dict[str, type[Access]] = {
    "s3": S3Access,
    "gs": GoogleAccess,
    "az": AzureAccess,
    "http": WebAccess,
    "https": WebAccess,
}
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_CAUSES = {
    "IncompleteMessage": "the server closed the connection",
    "Parse(": "its answer is not HTTP",
    "TimedOut": "it timed out",
}
"""Causes in a dump of structures, which have no message."""
_LOOK_SECONDS = 1.0
_MOST_SETTLED = 4
"""Times that a request is repeated at once: credentials of a role are new each time, and may be refused each time."""
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_TRANSIENT_STATUS = frozenset({408, 425, 429})
_NOT_ALLOWED, _GONE = 405, 410


class Bucket:
    """A bucket or web server that this process has opened. Thread-safe; recreates its connections after a fork.

    Args:
        scheme: "s3", "gs", "az", "http" or "https".
        name: Name of the bucket, or host and port of the server.

    Raises:
        StorageError: The settings are incomplete.
    """

    def __init__(self, scheme: str, name: str) -> None:
        self.url = f"{scheme}://{name}"
        kind = _ACCESS[scheme]
        self._access = kind(self.url if kind is WebAccess else name)
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
        settled = 0
        while True:
            kind = current_scope().policy.request_seconds, PIECE_BYTES if is_large else SMALL_BYTES
            store = self._stores.get(kind)
            if store is None:
                store = self._open(kind, url)
            try:
                found = request(load_obstore(), store, *arguments)
            except FileNotFoundError as error:
                raise self._missing(error, url) from error
            except (OSError, StorageError):
                raise
            except Exception as error:
                if settled < _MOST_SETTLED and self._is_settled(error, kind, store):
                    settled += 1
                    continue
                raise self._translated(error, url) from error
            self._has_worked = True
            return found

    def _open(self, kind: tuple[float, int], url: str) -> Any:
        """Returns the store for a kind of requests."""
        obstore = load_obstore()
        with self._lock:
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
        is_elsewhere = _is_elsewhere(text) or _code(text) == "AuthorizationHeaderMalformed"
        has_expired = self._access.has_expired(text)
        if not (is_elsewhere or has_expired or _is_refusal(error)):
            return False
        with self._lock:
            if self._stores.get(kind) is not store:  # another thread was faster
                return True
            if is_elsewhere:
                is_settled = self._access.move(text)
            else:
                if time.monotonic() - self._looked_at < _LOOK_SECONDS and not has_expired:
                    return False  # for a denied object, the files are not read again with every request
                try:
                    is_settled = self._access.renew()
                except StorageError:
                    if self._has_worked:
                        return False
                    raise
                finally:
                    self._looked_at = time.monotonic()
            if is_settled:
                self._stores.clear()
            return is_settled

    def _translated(self, error: Exception, url: str) -> Exception:
        """Returns an error of obstore as one that `with_retries` handles."""
        text = str(error)
        status, said, access = _status(text), _concise(text), self._access
        has_expired = access.has_expired(text)
        if has_expired and self._has_worked:
            return ConnectionError(said)  # they worked before: wait for whoever renews them
        if has_expired or _is_refusal(error):
            settings = access.how_to_set.rstrip(".")
            return PermissionError(f"{said} (some servers say this of missing objects too). {settings}")
        if status in _TRANSIENT_STATUS or status >= 500:
            return ConnectionError(said)
        if status == _GONE:
            return FileNotFoundError(said)
        if was_redirected(text) or 300 <= status < 400 or "BadScheme" in text:
            redirected = f"the server redirects {access.redirected}"
            return StorageError(f"Could not reach {url}: {redirected}. {access.where_it_is}")
        if "redirect without LOCATION" in text:
            return StorageError(
                f"Could not reach {url}: the server redirects it, but not to an address, as for a bucket in another "
                f"region. {access.where_it_is}"
            )
        if "TooManyRedirects" in text:
            return StorageError(f"Could not reach {url}: the server redirects in a loop. {access.how_to_set}")
        exceptions = load_obstore().exceptions
        if isinstance(error, exceptions.NotSupportedError) or "NotPartial" in text:
            if self.has_ranges:
                return ConnectionError("the server sent a document instead of the range")
            return StorageError(
                f"Could not read {url}: the server does not answer range requests. Serve the files with one that does, "
                "such as nginx or Apache, or copy the dataset to another store, or to a local disk."
            )
        if "MissingContentLength" in text:
            return StorageError(
                f"Could not read {url}: the server does not say how large it is (Content-Length). Serve it with a "
                "server that does, or copy it to a local disk."
            )
        if status or isinstance(error, (TypeError, ValueError)) or "builder error" in text or "ertificate" in text:
            return self._wrong_settings(url, error)
        return ConnectionError(said)

    def _missing(self, error: FileNotFoundError, url: str) -> Exception:
        text = str(error)
        if _code(text) in _NO_BUCKET:
            return StorageError(f"Could not reach {url}: there is no bucket {self.url}. {self._access.how_to_set}")
        is_refused = _status(text) == _NOT_ALLOWED  # for which obstore has no class of its own
        return self._wrong_settings(url, error) if is_refused else FileNotFoundError(_concise(text))

    def _wrong_settings(self, url: str, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        return StorageError(f"Could not reach {url}: {_concise(str(error))}. {self._access.how_to_set}")


_buckets: dict[tuple[str, str, tuple[tuple[str, str], ...]], Bucket] = {}


def open_bucket(url: str) -> tuple[Bucket, str]:
    """Returns the bucket or web server of a URL, the same object for the same settings, and the key inside it.

    Raises:
        StorageError: The URL names no bucket, or the settings are incomplete.
    """
    scheme, _, rest = url.partition("://")
    name, _, key = rest.partition("/")
    if not name:
        raise StorageError(f"{url} has no bucket. Give {scheme}://BUCKET/PATH.")
    if _ACCESS[scheme] is WebAccess:
        parts = urlsplit(url)
        name, key = f"{parts.netloc}?{parts.query}".rstrip("?"), unquote(parts.path[1:])
    begin = _ACCESS[scheme].variables
    identity = scheme, name, tuple(item for item in os.environ.items() if item[0].startswith(begin))
    bucket = _buckets.get(identity)
    if bucket is None:
        bucket = _buckets.setdefault(identity, Bucket(scheme, name))
        for oldest in list(_buckets)[:-_MOST_BUCKETS]:
            _buckets.pop(oldest, None)
    return bucket, key


def _is_refusal(error: Exception) -> bool:
    exceptions = load_obstore().exceptions
    return isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))


def _is_elsewhere(text: str) -> bool:
    """Returns whether the server says that the bucket is in another region, or on another host."""
    return "redirect without LOCATION" in text or was_redirected(text) or 300 <= _status(text) < 400


def _status(text: str) -> int:
    """Returns the status of a response in a message of obstore for which it has no class; 0 if there is none."""
    digits = text.partition("non-2xx status code: ")[2][:3]
    return int(digits) if digits.isdigit() else 0


def _code(text: str) -> str:
    """Returns the code in a document that S3, Google or Azure sent with an error, "" if there is none."""
    found = _CODE.search(text)
    return found[1] if found else ""


def _concise(text: str) -> str:
    """Returns the message of obstore without its dump of structures, and with the cause at the end of that."""
    message, _, dump = text.partition("\n\nDebug source:")
    code = _code(message)
    message = message.partition("<")[0].partition("\n")[0].rstrip(": ")  # without a document that the server sent
    message = f"{message} ({code})" if code else message
    causes = _CAUSE.findall(dump) or [said for name, said in _CAUSES.items() if name in dump]
    return f"{message}: {causes[-1]}" if causes else message
