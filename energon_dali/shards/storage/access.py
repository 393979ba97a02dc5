"""How a bucket is reached: what its provider's settings and credentials come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Access(ABC):
    """How a bucket is reached. Unless a subclass says otherwise, obstore itself renews the credentials."""

    @property
    def check_seconds(self) -> float:
        """After how many seconds `renew` is to be called."""
        return float("inf")

    @property
    def endpoint(self) -> str | None:
        """URL of the server, if it is not the provider's own."""
        return None

    def renew(self, refused: bool) -> bool:
        """Looks for newer credentials; returns whether there are any.

        Args:
            refused: The server refused the current ones, so that everything is read again.

        Raises:
            StorageError: There are none.
        """
        return False

    def move_to(self, region: str) -> bool:
        """Uses another region; returns False if it is the current one."""
        return False

    @abstractmethod
    def open(self, obstore: Any, client: dict[str, Any], retry: dict[str, Any]) -> Any:
        """Opens the bucket.

        Args:
            obstore: The module.
            client: Its options of the client.
            retry: Its options of retries.
        """
