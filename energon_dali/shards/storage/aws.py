"""The settings of S3: endpoint, region and credentials, as the AWS tools find them.

The environment is enough for the usual cases. botocore, if it is installed, adds what only it supports: profiles, SSO,
assumed roles and processes that print credentials. Without it, obstore itself asks for web identity, container and
instance credentials. obstore's own provider for botocore would replace a few lines of this module, but needs boto3, and
takes all credentials for valid for half an hour.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

import urllib3

from energon_dali.errors import StorageError
from energon_dali.shards.storage.access import Access, is_set, stay_on

CHECK_SECONDS = 60.0
"""Credentials that may expire are checked this often; botocore renews them minutes before they do."""

_EARLY_SECONDS = 300.0
"""obstore asks for new credentials this long before the old ones expire."""
_HOW_TO_SET = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket set AWS_SKIP_SIGNATURE=true."
)
_REGION = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired")
"""Codes of S3 for credentials that are no longer valid."""

Keys = tuple[str, str, str | None]
"""(access key, secret key, session token)."""


class S3Access(Access):
    """How one bucket is reached, and with which credentials.

    Args:
        name: Name of the bucket.

    Raises:
        StorageError: There are no credentials, or the profile does not exist.
    """

    variables = ("AWS_",)
    how_to_set = (
        "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and AWS_ENDPOINT_URL and AWS_REGION."
    )
    where_it_is = (
        "Set AWS_REGION to the region of the bucket, or AWS_ENDPOINT_URL to the server that has it; for a public "
        "bucket set AWS_SKIP_SIGNATURE=true."
    )

    _services: Mapping[str, Any] = {}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._region: str | None = None
        """The region that the server named."""
        self._read()

    def _read(self) -> None:
        """Reads the environment and the files of the AWS tools again."""
        environment = os.environ
        self._anonymous = is_set("AWS_SKIP_SIGNATURE") or is_set("AWS_NO_SIGN_REQUEST")
        self._keys = _environment_keys(environment)
        self._renewable: Any = None
        needs_keys = not self._anonymous and self._keys is None
        session = _session(self._name) if needs_keys or _has_files(environment) else None
        self._config: Mapping[str, Any] = {}
        if session is None:
            if needs_keys and (_profile(environment) or os.path.exists(_credentials_file(environment))):
                raise StorageError(
                    f"The credentials of s3://{self._name} are in a profile, and reading profiles needs boto3. Run "
                    "`pip install boto3`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
                )
            return
        with _explaining(self._name):
            self._config = session.get_scoped_config()
            if needs_keys:
                self._renewable = session.get_credentials()
        self._services = _service_settings(session, self._config)
        if needs_keys:
            if self._renewable is None:
                raise StorageError(f"There are no credentials for s3://{self._name}. {_HOW_TO_SET}")
            self._keys = self._frozen()

    def renew(self) -> bool:
        before = self._keys
        self._read()
        return self._keys != before

    def has_expired(self, refusal: str) -> bool:
        if "<Code>" in refusal:
            return any(f"<Code>{code}</Code>" in refusal for code in _EXPIRED)
        return "Error performing HEAD" in refusal and "status code: 400" in refusal  # a HEAD is refused without a code

    def move(self, refusal: str) -> bool:
        named = _REGION.search(refusal)
        region = named[1] if named else self._ask_for_region()
        if region in ("", self.region):
            return False
        self._region = region
        return True

    def _ask_for_region(self) -> str:
        """Returns the region of the bucket, "" if the server does not say."""
        endpoint = self.endpoint or "https://s3.amazonaws.com"
        try:
            answer = urllib3.request("HEAD", f"{endpoint}/{self._name}", retries=False, timeout=10.0, redirect=False)
        except urllib3.exceptions.HTTPError:
            return ""
        return str(answer.headers.get("x-amz-bucket-region", ""))

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
        options: dict[str, Any] = {"region": self.region}
        endpoint = self.endpoint
        urls = [f"https://{self.region}.amazonaws.com"]  # with all hosts below it
        if endpoint is not None:
            client = {**client, "allow_http": endpoint.startswith("http://")}
            urls = [endpoint]
            if dict(self._config.get("s3") or {}).get("addressing_style") == "virtual":
                parts = urlsplit(endpoint)
                endpoint = f"{parts.scheme}://{self._name}.{parts.netloc}{parts.path}"
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
            options["credential_provider"] = self._provide
        return obstore.store.S3Store(self._name, client_options=client, retry_config=retry, **options)

    def _provide(self) -> dict[str, Any]:
        """Returns the credentials for obstore, which asks again when it is time to check them."""
        until = None
        if self._renewable is not None:
            until = datetime.now(timezone.utc) + timedelta(seconds=CHECK_SECONDS + _EARLY_SECONDS)
            # If it fails, the current ones may still be valid; if they are not, the server will say so.
            with suppress(StorageError):
                self._keys = self._frozen()
        access, secret, token = self._keys or ("", "", None)
        return {"access_key_id": access, "secret_access_key": secret, "token": token, "expires_at": until}

    def _frozen(self) -> Keys:
        with _explaining(self._name):
            frozen = self._renewable.get_frozen_credentials()
        return frozen.access_key, frozen.secret_key, frozen.token


@contextmanager
def _explaining(bucket: str) -> Iterator[None]:
    """Context manager that turns the errors of botocore into a StorageError that names the bucket."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise StorageError(f"No credentials could be found for s3://{bucket}: {error}. {_HOW_TO_SET}") from error


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
