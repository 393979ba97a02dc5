"""The settings of Google Cloud Storage: server and credentials, as Google's tools find them."""

from __future__ import annotations

import json
import os
from datetime import timezone
from typing import Any

import urllib3

from energon_dali.errors import StorageError
from energon_dali.shards.storage.access import Access

VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SKIP_SIGNATURE",
    "STORAGE_EMULATOR_HOST",
)
"""Environment variables that tell stores apart: a store that was opened with other values is not used again."""

_KNOWN_TO_OBSTORE = ("service_account", "authorized_user")
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GoogleAccess(Access):
    """How one bucket is reached. obstore itself renews the credentials.

    Args:
        bucket: Its name.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        """Opens the bucket.

        Args:
            obstore: The module.
            client: Its options of the client.
            retry: Its options of retries.

        Raises:
            StorageError: The credentials need google-auth, which is not installed, or cannot be used.
        """
        options: dict[str, Any] = {}
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if emulator:
            emulator = emulator if "://" in emulator else f"http://{emulator}"
            client = {**client, "allow_http": emulator.startswith("http://")}
            options = {"base_url": emulator.rstrip("/"), "skip_signature": True}
        elif self._needs_google_auth():
            options["credential_provider"] = _provider(self._bucket)
        return obstore.store.GCSStore(self._bucket, client_options=client, retry_config=retry, **options)

    def _needs_google_auth(self) -> bool:
        """Returns whether the credentials are of a kind that obstore does not know, such as a federated identity."""
        file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if not file:
            return False
        try:
            with open(file, encoding="utf-8") as text:
                return json.load(text).get("type") not in _KNOWN_TO_OBSTORE
        except (OSError, ValueError, AttributeError) as error:
            raise StorageError(
                f"The credentials of gs://{self._bucket} cannot be read from {file}: {error}. Check "
                "GOOGLE_APPLICATION_CREDENTIALS."
            ) from error


def _provider(bucket: str) -> Any:
    """Returns a function that fetches credentials with google-auth, which supports every kind."""
    try:
        import google.auth
        from google.auth.transport.urllib3 import Request
    except ImportError as error:
        raise StorageError(
            f"The credentials of gs://{bucket} are of a kind that needs google-auth. Run "
            "`pip install google-auth requests`."
        ) from error
    credentials, _ = google.auth.default(scopes=[_SCOPE])
    request = Request(urllib3.PoolManager())

    def fetch() -> dict[str, Any]:
        credentials.refresh(request)
        return {"token": credentials.token, "expires_at": credentials.expiry.replace(tzinfo=timezone.utc)}

    return fetch
