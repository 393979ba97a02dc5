"""Serves the page on loopback until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from energon_dali.errors import ConfigError
from energon_dali.view.app import create_app
from energon_dali.view.guard import new_token
from energon_dali.view.site import Site

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 2
"""How long the end waits for browsers: one may hold a connection open on which it asks for nothing."""


def serve(site: Site, port: int, announce: Callable[[str], None]) -> None:
    """Serves a site until Ctrl-C or SIGTERM.

    Args:
        site: What is shown; it is closed at the end.
        port: Port on 127.0.0.1; 0 takes a free one.
        announce: Called with the address, which has the token, when the browser may open it.

    Raises:
        ConfigError: The port is in use, or may not be used.
    """
    token = new_token()
    with listen(port) as listener:
        announce(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
        with suppress(KeyboardInterrupt):  # which the server raises again when it has ended
            make_server(site, token).run(sockets=[listener])


def make_server(site: Site, token: str) -> uvicorn.Server:
    """Returns a server that is not running yet.

    Args:
        site: What is shown; it is closed when the server ends.
        token: The secret that a browser needs.
    """
    # No access log: the first address has the token.
    config = uvicorn.Config(
        create_app(site, token), log_level="warning", access_log=False, server_header=False, lifespan="on", ws="none"
    )
    return _Server(config, site)


class _Server(uvicorn.Server):
    """Stops what requests wait for when the end begins, and closes the connections that are open some time later."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, self._close_connections)
        stopping = asyncio.create_task(asyncio.to_thread(self._site.stop))  # the end waits for all requests
        await super().shutdown(sockets)
        await stopping

    def _close_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def listen(port: int) -> socket.socket:
    """Returns a socket that listens on loopback.

    Args:
        port: The port; 0 takes a free one.

    Raises:
        ConfigError: The port is in use, or may not be used.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Port {port} of {HOST} cannot be used: {error.strerror}. Give another --port, or none for a free one."
        ) from error
    return listener
