from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from energon_dali import ConfigError
from energon_dali.integrations.prometheus import DEFAULT_PORT, LoaderCollector, MetricsServer
from energon_dali.loader.metric_declarations import DECLARATIONS
from tests.forking import fork
from tests.integrations.observed import everything, full_loader, numbers_loader
from tests.running_time import wait_until

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "files" / "grafana-dashboard.json"


def read(url: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def samples_of(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Returns the values of a page by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(page: str, name: str, **labels: str) -> float:
    return samples_of(page)[name, frozenset(labels.items())]


def test_the_page_says_what_the_loaders_say() -> None:
    train, val = numbers_loader(), numbers_loader(rank=1, world_size=2)
    with MetricsServer({"train": train, "val": val}, port=0) as server:
        assert len(list(islice(train, 7))) == 7
        assert len(list(islice(val, 3))) == 3
        page = read(server.url)
    assert value(page, "energon_dali_batches_total", loader="train", rank="0") == 7
    assert value(page, "energon_dali_batches_total", loader="val", rank="1") == 3
    blocked = value(page, "energon_dali_trainer_blocked_seconds_total", loader="train", rank="0")
    assert blocked == train.stats().blocked_seconds
    made = value(page, "energon_dali_events_total", loader="train", rank="0", event="made")
    assert made == train.stats().counts["made"] >= 7


def test_every_number_of_the_statistics_is_on_the_page() -> None:
    statistics = everything()
    loader = full_loader()  # a page does not keep its loaders alive
    with MetricsServer(loader, port=0) as server:
        found = samples_of(read(server.url))
    by_label = {
        (name, dict(labels).get(label)): number
        for (name, labels), number in found.items()
        for label in ("stage", "route", "store", "dataset", "kind", "event")
    }
    for stage, seconds in statistics.stage_seconds.items():
        assert by_label["energon_dali_stage_seconds_total", stage] == seconds
    for route, parts in statistics.routes.items():
        assert by_label["energon_dali_media_parts_total", route] == parts
    for dataset, row in statistics.blend.items():
        assert by_label["energon_dali_blend_samples_total", dataset] == row["samples"]
        assert by_label["energon_dali_blend_units_total", dataset] == row["units"]
    for dataset, row in statistics.planned_blend.items():
        assert by_label["energon_dali_blend_wanted_ratio", dataset] == row["wanted_share"]
        assert by_label["energon_dali_blend_planned_ratio", dataset] == row["planned_share"]
    assert by_label["energon_dali_storage_retries_total", "s3://bucket"] == 2
    assert by_label["energon_dali_gpu_memory_bytes", "reserved"] == 2 << 30
    assert by_label["energon_dali_samples_skipped_total", "filter"] == 2
    assert by_label["energon_dali_samples_failed_total", "decode"] == 3
    assert by_label["energon_dali_events_total", 'made by a "user\'s" dataset\\\n'] == 11
    numbers = sorted(found.values())
    for count in statistics.counts.values():
        if count not in (7, 3):  # the sums of those that are listed by stage
            assert count in numbers
    for number in (21, 12.5, 0.5, 2.5, 0.75, 4_000_000, 100, 4_000, 5_000, 3.5):
        assert number in numbers, number


def test_names_units_and_descriptions_are_those_of_the_declarations() -> None:
    loader = full_loader()  # a page does not keep its loaders alive
    with MetricsServer(loader, port=0) as server:
        page = read(server.url, "application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in openmetrics_parser.text_string_to_metric_families(page)}
    assert set(families) == {declaration.full_name for declaration in DECLARATIONS}
    for declaration in DECLARATIONS:
        family = families[declaration.full_name]
        assert (family.type, family.unit) == (declaration.kind, declaration.unit), declaration.name
        assert family.documentation == declaration.description
        for sample in family.samples:
            assert set(sample.labels) == {"loader", "rank", *declaration.labels}


def test_a_forgotten_loader_leaves_the_page() -> None:
    loader = numbers_loader()
    collector = LoaderCollector(loader)
    assert list(collector.collect())
    del loader
    assert not list(collector.collect())
    assert len(list(collector.describe())) == len(DECLARATIONS)


def test_the_page_is_served_on_loopback_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = numbers_loader()
    server = MetricsServer(loader, port=0)
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert "energon_dali_batches_total" in read(server.url)
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{server.port}: .*Give another port, or port=0"):
        MetricsServer(numbers_loader(), port=server.port)
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        read(server.url)
    # The port is free again, also while a forked worker lives.
    server = MetricsServer(loader, port=0)
    child = fork()
    if child == 0:
        time.sleep(100)
        os._exit(0)
    try:
        server.close()
        with pytest.raises(urllib.error.URLError):
            read(server.url)
        with MetricsServer(loader, port=server.port) as again:
            assert "energon_dali_batches_total" in read(again.url)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    asked: list[Any] = []

    def refuse(port: int, *_: Any) -> None:
        asked.append(port)
        raise OSError("taken")

    monkeypatch.setattr("energon_dali.integrations.prometheus.start_http_server", refuse)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(ConfigError, match="taken"):
        MetricsServer(numbers_loader())
    assert asked == [DEFAULT_PORT + 3]


@pytest.mark.parametrize("loaders", [None, {"train": 3}, [numbers_loader()]])
def test_other_things_than_loaders_are_refused(loaders: Any) -> None:
    with pytest.raises(ConfigError, match="neither a loader nor a dict of loaders by name"):
        MetricsServer(loaders, port=0)


# --- the dashboard -------------------------------------------------------------------------------------------------


def queries() -> list[str]:
    """Returns the queries of the Grafana dashboard, panels and variables."""
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    return found + [each["definition"] for each in board["templating"]["list"] if each["type"] == "query"]


def test_each_query_of_the_dashboard_reads_metrics_of_the_page() -> None:
    loader = full_loader()  # a page does not keep its loaders alive
    with MetricsServer(loader, port=0) as server:
        names = {name for name, _ in samples_of(read(server.url))}
    wanted = {name for query in queries() for name in re.findall(r"energon_dali_\w+", query)}
    assert len(wanted) > 20
    assert wanted <= names, wanted - names
    left_out = {"elapsed_seconds_total", "blocks_total", "decode_process_batches_total", "decode_process_bytes_total"}
    assert names - wanted == {f"energon_dali_{name}" for name in (*left_out, "events_total")}
    labels = {label for declaration in DECLARATIONS for label in declaration.labels} | {"loader", "rank", "job"}
    for query in queries():
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert {label.strip() for label in group.split(",")} <= labels, query


def test_the_dashboard_can_be_imported_by_grafana() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    variables = {each["name"] for each in board["templating"]["list"]} | {"__rate_interval"}
    for query in queries():
        assert set(re.findall(r"\$(\w+)", query)) <= variables


def test_the_table_of_the_documentation_has_every_metric() -> None:
    page = (DASHBOARD.parents[1] / "observing.md").read_text()
    rows = re.findall(r"^\| `(energon_dali_\w+)` \| ([\w, -]+) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (
            declaration.full_name + ("_total" if declaration.kind == "counter" else ""),
            ", ".join(declaration.labels) or "-",
            declaration.description.rstrip("."),
        )
        for declaration in DECLARATIONS
    ]


# --- a real Prometheus ---------------------------------------------------------------------------------------------


def need(program: str) -> Any:
    return pytest.mark.skipif(shutil.which(program) is None, reason="needs Debian's package prometheus")


@pytest.mark.prometheus
@need("promtool")
def test_promtool_finds_nothing_wrong_with_the_page() -> None:
    loader = full_loader()  # a page does not keep its loaders alive
    with MetricsServer(loader, port=0) as server:
        page = read(server.url)
    run = subprocess.run(["promtool", "check", "metrics"], input=page, text=True, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stderr


@pytest.mark.prometheus
@need("prometheus")
def test_a_real_prometheus_scrapes_the_page_and_answers_the_dashboard(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        own_port = free.getsockname()[1]
    loader = full_loader()
    with MetricsServer(loader, port=0) as server:
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs:\n"
            f"  - {{job_name: training, static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]}}\n"
        )
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        command += [f"--web.listen-address=127.0.0.1:{own_port}", "--log.level=error"]
        with open(tmp_path / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                check_prometheus(f"http://127.0.0.1:{own_port}/api/v1/")
            finally:
                process.terminate()


def check_prometheus(api: str) -> None:
    def ask(query: str) -> list[Any]:
        answer = json.loads(read(f"{api}query?{urllib.parse.urlencode({'query': query})}"))
        assert answer["status"] == "success", query
        rows: list[Any] = answer["data"]["result"]
        return rows

    def has_rates() -> bool:
        try:
            return bool(ask("rate(energon_dali_batches_total[1m])"))
        except OSError:
            return False

    assert wait_until(has_rates, 30)
    (row,) = ask('energon_dali_stage_seconds_total{stage="load"}')
    assert row["metric"]["job"] == "training"
    assert (row["metric"]["loader"], row["metric"]["rank"], row["value"][1]) == ("train", "0", "4")
    metadata = json.loads(read(f"{api}targets/metadata?metric=energon_dali_stage_seconds"))["data"]
    assert metadata[0]["type"] == "counter"
    assert metadata[0]["help"] == "Time per stage, summed over all processes."
    for query in queries():
        if query.startswith("label_values"):
            continue
        for variable, text in {"$job": ".*", "$loader": ".*", "$rank": ".*", "$__rate_interval": "1m"}.items():
            query = query.replace(variable, text)
        assert ask(query), query
