"""Serves pages in this process, and asks for them as a browser does, header by header."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from energon_dali.view.app import HOST, listen, make_server
from energon_dali.view.catalog import ViewOptions
from energon_dali.view.guard import Guard
from energon_dali.view.selection import Search
from energon_dali.view.site import Site
from energon_dali.view.sorted_samples import SortedSamples

TOKEN = "token-of-the-tests"


@dataclass
class Answer:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class PageServer:
    """A server that runs."""

    site: Site
    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def cookie(self) -> str:
        async def nothing(*_: Any) -> None: ...

        return f"{Guard(nothing, TOKEN).cookie}={TOKEN}"

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, *, cookie: bool = True
    ) -> Answer:
        """Sends a request, with the cookie and nothing else that is not given."""
        sent = {"Host": f"{HOST}:{self.port}", **({"Cookie": self.cookie} if cookie else {}), **(headers or {})}
        with closing(http.client.HTTPConnection(HOST, self.port, timeout=30)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            content = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, content)

    def own_post(self, path: str) -> Answer:
        """Sends what a form of the page sends."""
        return self.ask(path, "POST", {"Origin": self.url, "Sec-Fetch-Site": "same-origin", "Content-Length": "0"})


@contextmanager
def serving(path: Path | str, scans: Path, **options: Any) -> Iterator[PageServer]:
    """Serves a dataset on a free port. Its pages wait until all that they show was searched and sorted."""
    site = Site(ViewOptions(str(path), **options), scan_folder=scans)
    server = make_server(site, TOKEN)
    with pytest.MonkeyPatch.context() as patch, listen(0) as listener:
        for searched in (Search, SortedSamples):
            patch.setattr(searched.page, "__defaults__", (60.0,))  # `wait_seconds`
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            yield PageServer(site, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
