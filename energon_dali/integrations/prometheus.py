"""A page for Prometheus with the statistics of loaders. It needs prometheus-client, of the extra `metrics`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from energon_dali.errors import ConfigError
from energon_dali.integrations import LoaderReferences, Loaders
from energon_dali.loader.metric_declarations import DECLARATIONS, MetricDeclaration

DEFAULT_PORT = 9464
"""Port of the page of the first rank of a machine."""


class LoaderCollector(Collector):
    """Gives the statistics of loaders to a registry of prometheus-client, each time the page is read.

    Each metric has the labels `loader`, the loader's name, and `rank`. The collector does not keep a loader alive.

    Args:
        loaders: A loader, which is called "train"; or several by name.

    Raises:
        ConfigError: Something else was given.
    """

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = LoaderReferences(loaders)

    def describe(self) -> Iterator[Any]:
        """Yields the metrics without values."""
        for declaration in DECLARATIONS:
            yield _family(declaration)

    def collect(self) -> Iterator[Any]:
        """Yields the metrics with the values of now."""
        rows = [((name, str(loader.worker_config.rank)), loader.stats()) for name, loader in self._loaders]
        for declaration in DECLARATIONS:
            family = _family(declaration)
            for labels, statistics in rows:
                for own_labels, value in declaration.samples(statistics):
                    family.add_metric([*labels, *own_labels], value)
            if family.samples:
                yield family


def _family(declaration: MetricDeclaration) -> Any:
    kind = CounterMetricFamily if declaration.kind == "counter" else GaugeMetricFamily
    labels = ["loader", "rank", *declaration.labels]
    return kind(declaration.full_name, declaration.description, labels=labels, unit=declaration.unit)


class MetricsServer:
    """Serves the statistics of loaders to Prometheus, at http://HOST:PORT/metrics, from a thread.

    Starts at once. Close it, or use it in a `with` block; it ends with the process in any case. It does not keep
    loaders alive.

    Args:
        loaders: A loader, which is called "train"; or several by name.
        port: Port; 0 chooses a free one. None is 9464 plus LOCAL_RANK, so that each rank of a machine has its own.
        host: Address to listen on. The default can be reached from this machine alone. The page has names of datasets,
            stages and stores, and no password: choose another address only in a network that you trust.

    Raises:
        ConfigError: Nothing can listen there, or `loaders` is something else.
    """

    def __init__(self, loaders: Loaders, *, port: int | None = None, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()
        registry.register(LoaderCollector(loaders))
        if port is None:
            port = DEFAULT_PORT + int(os.environ.get("LOCAL_RANK", "0"))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"The metrics cannot be served at {host}:{port}: {error}. Give another port, or port=0 for a free one."
            ) from error
        self._open = True

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """Where Prometheus finds the page."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Ends it; may be called again."""
        if self._open:
            self._open = False
            self._server.shutdown()
            with contextlib.suppress(OSError):
                # Workers that were forked meanwhile have the socket too: it must not go on listening there.
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
