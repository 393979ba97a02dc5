"""How stores are reached: what the settings and credentials of their providers come to.

A request with credentials goes to no other host than that of its store. obstore follows redirects, and has no option
against it. To another host it still sends headers such as x-amz-security-token, and the address of the first request,
which may contain a signature. So all hosts but those of the store get a proxy that cannot be reached, and a redirect to
them fails before anything is sent.
"""

from __future__ import annotations

import json
import os
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import timezone
from typing import Any, ClassVar
from urllib.parse import urlsplit

from energon_dali.errors import StorageError

_NOWHERE = "127.0.0.1:0"
"""No program can listen on port 0, and connecting to it fails at once."""
_KNOWN_TO_OBSTORE = ("service_account", "authorized_user")
"""Kinds of Google's credentials."""
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class Access(ABC):
    """How a bucket or a web server is reached. Unless a subclass says otherwise, obstore itself renews the credentials.

    Args:
        name: Name of the bucket; for a web server, its host.
    """

    variables: ClassVar[tuple[str, ...]] = ()
    """How environment variables begin that tell stores apart: one that was opened with others is not used again."""
    how_to_set: ClassVar[str]
    """What to check where the server refuses, for messages."""
    where_it_is: ClassVar[str]
    """What to set where the server says that the store is elsewhere, for messages."""
    redirected: ClassVar[str] = "the request to another host, and credentials are not sent there"
    """Where the server redirects what, if it is not followed, for messages."""

    def __init__(self, name: str) -> None:
        self._name = name

    @abstractmethod
    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        """Opens the store.

        Args:
            obstore: The module.
            client: Its options of the client.
            retry: Its options of retries.

        Raises:
            StorageError: The settings are incomplete or wrong.
        """

    def renew(self) -> bool:
        """Reads the settings again because the server refused the current ones; returns whether they have changed.

        Raises:
            StorageError: There are no credentials.
        """
        return False

    def has_expired(self, refusal: str) -> bool:
        """Returns whether the server says that the credentials are no longer valid.

        Args:
            refusal: Message of obstore.
        """
        return False

    def move(self, refusal: str) -> bool:
        """Uses the region of the bucket; returns False if that is the current one, or unknown.

        Args:
            refusal: Message of obstore.
        """
        return False


class WebAccess(Access):
    """A web server. Redirects to other hosts are followed, unless the address has a query, which may be a signature.

    Args:
        name: Scheme, host and port, and the query if there is one.
    """

    how_to_set = "Check the address, and that you may read it."
    where_it_is = "Give the address of the file."
    redirected = (
        "it to an address that is not followed: it is not one of a web server, leads from https to http, or from an "
        "address with a query, which may be a signature, to another host"
    )

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        client = {**client, "allow_http": self._name.startswith("http://")}
        if "?" in self._name:
            client = stay_on(client, [self._name])
        return obstore.store.HTTPStore(self._name, client_options=client, retry_config=retry)


class GoogleAccess(Access):
    """A bucket of Google Cloud Storage, whose settings are found as Google's tools find them."""

    variables = ("GOOGLE_", "STORAGE_EMULATOR_HOST")
    how_to_set = "Check GOOGLE_APPLICATION_CREDENTIALS; for a public bucket set GOOGLE_SKIP_SIGNATURE=true."
    where_it_is = "Set STORAGE_EMULATOR_HOST to the server that has the bucket."

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        options: dict[str, Any] = {}
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        if emulator:
            emulator = emulator if "://" in emulator else f"http://{emulator}"
            client = {**client, "allow_http": emulator.startswith("http://")}
            options = {"base_url": emulator.rstrip("/"), "skip_signature": True}
        elif self._needs_google_auth():
            options["credential_provider"] = _google_provider(self._name)
        return obstore.store.GCSStore(self._name, client_options=client, retry_config=retry, **options)

    def _needs_google_auth(self) -> bool:
        """Returns whether the credentials are of a kind that obstore does not support, such as a federated identity."""
        file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        if not file:
            return False
        try:
            with open(file, encoding="utf-8") as text:
                return json.load(text).get("type") not in _KNOWN_TO_OBSTORE
        except (OSError, ValueError, AttributeError) as error:
            raise StorageError(
                f"The credentials of gs://{self._name} cannot be read from {file}: {error}. Check "
                "GOOGLE_APPLICATION_CREDENTIALS."
            ) from error


def _google_provider(bucket: str) -> Any:
    """Returns a function that fetches credentials with google-auth, which supports every kind."""
    try:
        import google.auth
        from google.auth.transport.requests import Request
    except ImportError as error:
        raise StorageError(
            f"The credentials of gs://{bucket} are of a kind that needs google-auth. Run "
            "`pip install google-auth requests`."
        ) from error
    credentials, _ = google.auth.default(scopes=[_GOOGLE_SCOPE])
    request = Request()

    def fetch() -> dict[str, Any]:
        credentials.refresh(request)
        return {"token": credentials.token, "expires_at": credentials.expiry.replace(tzinfo=timezone.utc)}

    return fetch


class AzureAccess(Access):
    """A container whose settings obstore itself finds."""

    variables = ("AZURE_",)
    how_to_set = (
        "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; for a public container set "
        "AZURE_SKIP_SIGNATURE=true."
    )
    where_it_is = (
        "Set AZURE_STORAGE_ENDPOINT to the server that has the container; for a public container set "
        "AZURE_SKIP_SIGNATURE=true."
    )

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        if os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://"):
            client = {**client, "allow_http": True}
        if not is_set("AZURE_SKIP_SIGNATURE"):
            client = stay_on(client, _azure_servers())
        return obstore.store.AzureStore(self._name, client_options=client, retry_config=retry)


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


def is_set(variable: str) -> bool:
    """Returns whether an environment variable says yes."""
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def stay_on(client: dict[str, Any], urls: Iterable[str]) -> dict[str, Any]:
    """Returns options of obstore's client with which it does not follow redirects to other hosts.

    Ports and schemes of one host are treated alike, except that obstore never goes from https to http. If a proxy of
    the environment is used, redirects stay with it, because obstore has only one proxy.

    Args:
        client: The other options.
        urls: What the client may connect to: the store, and the servers of its credentials.
    """
    parts = [urlsplit(url) for url in urls]
    if any(_has_proxy(part.scheme, part.netloc.rpartition("@")[2]) for part in parts):
        return client
    hosts = dict.fromkeys(part.hostname for part in parts if part.hostname)
    return {**client, "proxy_url": f"http://{_NOWHERE}", "proxy_excludes": ",".join(hosts)}


def was_redirected(text: str) -> bool:
    """Returns whether an error of obstore is about a redirect that `stay_on` stopped.

    Args:
        text: Its message with the dump of structures.
    """
    return f" {_NOWHERE}," in text


def _has_proxy(scheme: str, netloc: str) -> bool:
    proxies = urllib.request.getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not urllib.request.proxy_bypass(netloc)
