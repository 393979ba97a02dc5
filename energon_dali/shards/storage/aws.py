"""The settings of S3: endpoint, region and credentials, as the AWS tools find them.

The environment is enough for the usual cases. botocore, if it is installed, adds what only it supports: profiles, SSO,
assumed roles and processes that print credentials. Without it, obstore itself asks for web identity, container and
instance credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from energon_dali.errors import StorageError
from energon_dali.shards.storage.access import Access
from energon_dali.shards.storage.redirects import stay_on

VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_SKIP_SIGNATURE",
    "AWS_NO_SIGN_REQUEST",
    "AWS_CA_BUNDLE",
)
"""Environment variables that tell stores apart: a store that was opened with other values is not used again."""

CHECK_SECONDS = 60.0
"""Credentials that may expire are checked this often; botocore renews them minutes before they do."""

_HOW_TO_SET = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket set AWS_SKIP_SIGNATURE=true."
)

Keys = tuple[str, str, str | None]
"""(access key, secret key, session token)."""


class S3Access(Access):
    """How one bucket is reached, and with which credentials.

    Args:
        bucket: Its name.

    Raises:
        StorageError: There are no credentials, or the profile does not exist.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._region: str | None = None
        """The region that the server named."""
        self._read()

    def _read(self) -> None:
        """Reads the environment and the files of the AWS tools again."""
        environment = os.environ
        self._anonymous = any(
            environment.get(name, "").lower() in ("1", "true", "yes", "on")
            for name in ("AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST")
        )
        self._keys = _environment_keys(environment)
        self._renewable: Any = None
        needs_keys = not self._anonymous and self._keys is None
        session = _session(self._bucket) if needs_keys or _has_files(environment) else None
        self._config: Mapping[str, Any] = {}
        if session is None:
            if needs_keys and (_profile(environment) or os.path.exists(_credentials_file(environment))):
                raise StorageError(
                    f"The credentials of s3://{self._bucket} are in a profile, and reading profiles needs boto3. Run "
                    "`pip install boto3`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
                )
            return
        with _explaining(self._bucket):
            self._config = session.get_scoped_config()
            if needs_keys:
                self._renewable = session.get_credentials()
        self._services = _service_settings(session, self._config)
        if needs_keys:
            if self._renewable is None:
                raise StorageError(f"There are no credentials for s3://{self._bucket}. {_HOW_TO_SET}")
            self._keys = self._frozen()

    _services: Mapping[str, Any] = {}

    @property
    def check_seconds(self) -> float:
        """After how many seconds `renew` is to be called."""
        return CHECK_SECONDS if self._renewable is not None else float("inf")

    def renew(self, refused: bool) -> bool:
        """Looks for newer credentials; returns whether there are any.

        Args:
            refused: The server refused the current ones, so that everything is read again.

        Raises:
            StorageError: There are none.
        """
        before = self._keys
        if refused:
            self._read()
        elif self._renewable is not None:
            self._keys = self._frozen()
        return self._keys != before

    def move_to(self, region: str) -> bool:
        """Uses another region; returns False if it is the current one."""
        if region in ("", self.region):
            return False
        self._region = region
        return True

    @property
    def region(self) -> str:
        """The region of the bucket, as far as it is known."""
        environment = os.environ
        named = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or self._config.get("region")
        return self._region or str(named or "us-east-1")

    @property
    def endpoint(self) -> str | None:
        """URL of the server; None for AWS itself."""
        found = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
            found = None
        else:
            found = found or self._services.get("endpoint_url") or self._config.get("endpoint_url")
        return str(found).rstrip("/") if found else None

    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        """Opens the bucket.

        Args:
            obstore: The module.
            client: Its options of the client.
            retry: Its options of retries.
        """
        options: dict[str, Any] = {"region": self.region}
        endpoint = self.endpoint
        urls = [f"https://{self.region}.amazonaws.com"]  # with all hosts below it
        if endpoint is not None:
            client = {**client, "allow_http": endpoint.startswith("http://")}
            urls = [endpoint]
            if dict(self._config.get("s3") or {}).get("addressing_style") == "virtual":
                parts = urlsplit(endpoint)
                endpoint = f"{parts.scheme}://{self._bucket}.{parts.netloc}{parts.path}"
                options["virtual_hosted_style_request"] = True
            # The variable for S3 alone, which obstore prefers, may be set and ignored here.
            options |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
        certificates = os.environ.get("AWS_CA_BUNDLE") or self._config.get("ca_bundle")
        if certificates:
            with open(os.path.expanduser(certificates), "rb") as bundle:
                client = {**client, "root_certificate": bundle.read()}
        if self._anonymous:
            options["skip_signature"] = True
        else:
            if self._keys is None:
                urls += _credential_servers(self.region)
            client = stay_on(client, urls)
        if self._anonymous or self._keys is not None:
            # As a provider, or obstore would complete them with what is set in the environment.
            access, secret, token = self._keys or ("", "", None)
            found = {"access_key_id": access, "secret_access_key": secret, "token": token, "expires_at": None}
            options["credential_provider"] = lambda: found
        return obstore.store.S3Store(self._bucket, client_options=client, retry_config=retry, **options)

    def _frozen(self) -> Keys:
        with _explaining(self._bucket):
            frozen = self._renewable.get_frozen_credentials()
        return frozen.access_key, frozen.secret_key, frozen.token


class _explaining:  # noqa: N801 - read as a statement: with _explaining(bucket)
    """Context manager that turns the errors of botocore into a StorageError that names the bucket."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def __enter__(self) -> None:
        """Begins."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StorageError):
            raise StorageError(
                f"No credentials could be found for s3://{self._bucket}: {error}. {_HOW_TO_SET}"
            ) from error


def _credential_servers(region: str) -> list[str]:
    """Returns the URLs from which obstore itself may fetch credentials."""
    named = [value for name, value in os.environ.items() if name.startswith("AWS_") and "://" in value]
    services = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "[fd00:ec2::254]")
    return [*named, f"https://{region}.amazonaws.com", *(f"http://{address}" for address in services)]


def _environment_keys(environment: Mapping[str, str]) -> Keys | None:
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    return (access, secret, environment.get("AWS_SESSION_TOKEN") or None) if access and secret else None


def _profile(environment: Mapping[str, str]) -> str | None:
    return environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")


def _credentials_file(environment: Mapping[str, str]) -> str:
    return os.path.expanduser(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")


def _has_files(environment: Mapping[str, str]) -> bool:
    """Returns whether there are files to look into: without them, botocore need not be imported."""
    config = os.path.expanduser(environment.get("AWS_CONFIG_FILE") or "~/.aws/config")
    return bool(_profile(environment)) or os.path.exists(config) or os.path.exists(_credentials_file(environment))


def _session(bucket: str) -> Any:
    """Returns a session of botocore; None if it is not installed."""
    try:
        import botocore.session
    except ImportError:
        return None
    with _explaining(bucket):
        return botocore.session.Session()


def _service_settings(session: Any, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings for S3 from the section `services` that the profile names."""
    sections = session.full_config.get("services") or {}
    section = sections.get(config.get("services")) or {}
    settings = section.get("s3") if isinstance(section, dict) else None
    return settings if isinstance(settings, dict) else {}
