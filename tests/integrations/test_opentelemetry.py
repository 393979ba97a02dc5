from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from energon_dali.integrations import opentelemetry
from energon_dali.integrations.opentelemetry import observe_loaders
from energon_dali.loader.metric_declarations import DECLARATIONS
from tests.integrations.observed import everything, full_loader


def test_an_exporter_reads_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    loader = full_loader()
    observe_loaders({"train": loader}, provider.get_meter("a training"))
    data: Any = reader.get_metrics_data()
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert len(found) == len(DECLARATIONS)
    stage = found["energon_dali.stage"]
    assert (stage.unit, stage.description) == ("s", "Time per stage, summed over all processes.")
    assert stage.data.is_monotonic
    points = {point.attributes["stage"]: point.value for point in stage.data.data_points}
    assert points == everything().stage_seconds
    (batches,) = found["energon_dali.batches"].data.data_points
    assert (batches.value, dict(batches.attributes)) == (21, {"loader": "train", "rank": 0})
    assert found["energon_dali.blocks.bytes"].unit == "By"
    asked: list[int] = []
    loader.stats = lambda: asked.append(1) or everything()
    monkeypatch.setattr(opentelemetry, "_SAME_TIME_SECONDS", 100.0)
    assert reader.get_metrics_data() is not None
    assert not asked  # read once for all metrics of one time
    monkeypatch.setattr(opentelemetry, "_SAME_TIME_SECONDS", 0.0)
    del loader
    assert reader.get_metrics_data() is None
    provider.shutdown()
