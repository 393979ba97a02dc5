"""The statistics of loaders as OpenTelemetry metrics. It needs opentelemetry-api, of the extra `opentelemetry`."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from energon_dali.integrations import LoaderReferences, Loaders
from energon_dali.loader.metric_declarations import DECLARATIONS, MetricDeclaration
from energon_dali.loader.statistics import LoaderStatistics

_SAME_TIME_SECONDS = 0.1
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}


def observe_loaders(loaders: Loaders, meter: Meter | None = None) -> None:
    """Makes the statistics of loaders metrics of a meter, whose exporter reads them when it wants to.

    Their names are those of the Prometheus page with dots, such as `energon_dali.stage`, with OpenTelemetry's units.
    Each has the attributes `loader` and `rank`. The loaders are not kept alive.

    Args:
        loaders: A loader, which is called "train"; or several by name.
        meter: Takes them; None is the meter "energon_dali" of the global provider.

    Raises:
        ConfigError: `loaders` is something else.
    """
    meter = meter or get_meter("energon_dali")
    reader = _Reader(LoaderReferences(loaders))
    for declaration in DECLARATIONS:
        create: Any = (
            meter.create_observable_counter if declaration.kind == "counter" else meter.create_observable_gauge
        )
        name = f"energon_dali.{declaration.name}" + (f".{declaration.unit}" if declaration.unit == "bytes" else "")
        create(
            name,
            callbacks=[functools.partial(_observe, reader, declaration)],
            unit=_UNITS[declaration.unit],
            description=declaration.description,
        )


class _Reader:
    """Reads the loaders once for all metrics that are asked for at the same time.

    Args:
        references: The loaders.
    """

    def __init__(self, references: LoaderReferences) -> None:
        self._references = references
        self._read_at = -math.inf
        self._rows: list[tuple[dict[str, Any], LoaderStatistics]] = []

    def read(self) -> list[tuple[dict[str, Any], LoaderStatistics]]:
        """Returns the attributes and the statistics of each loader."""
        now = time.monotonic()
        if now - self._read_at > _SAME_TIME_SECONDS:
            self._read_at = now
            self._rows = [
                ({"loader": name, "rank": loader.worker_config.rank}, loader.stats())
                for name, loader in self._references
            ]
        return self._rows


def _observe(reader: _Reader, declaration: MetricDeclaration, options: CallbackOptions) -> Iterable[Observation]:
    """Reads one metric of all loaders."""
    for attributes, statistics in reader.read():
        for labels, value in declaration.samples(statistics):
            yield Observation(value, {**attributes, **dict(zip(declaration.labels, labels, strict=True))})
