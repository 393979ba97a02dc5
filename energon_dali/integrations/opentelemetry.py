"""The statistics of loaders as OpenTelemetry metrics. It needs opentelemetry-api, of the extra `opentelemetry`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from energon_dali.integrations.named_loaders import LoaderReferences, Loaders
from energon_dali.loader.metric_declarations import DECLARATIONS, MetricDeclaration

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
    references = LoaderReferences(loaders)
    for declaration in DECLARATIONS:
        create: Any = (
            meter.create_observable_counter if declaration.kind == "counter" else meter.create_observable_gauge
        )
        name = f"energon_dali.{declaration.name}" + (f".{declaration.unit}" if declaration.unit == "bytes" else "")
        create(
            name,
            callbacks=[_Observations(references, declaration)],
            unit=_UNITS[declaration.unit],
            description=declaration.description,
        )


class _Observations:
    """Reads one metric of all loaders.

    Args:
        references: The loaders.
        declaration: The metric.
    """

    def __init__(self, references: LoaderReferences, declaration: MetricDeclaration) -> None:
        self._references = references
        self._declaration = declaration

    def __call__(self, options: CallbackOptions) -> Iterable[Observation]:
        for name, loader in self._references:
            for labels, value in self._declaration.samples(loader.stats()):
                own = dict(zip(self._declaration.labels, labels, strict=True))
                yield Observation(value, {"loader": name, "rank": loader.worker_config.rank, **own})
