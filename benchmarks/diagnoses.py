"""What `bench`, `tune`, the panel and `num_workers="auto"` say about nine loaders that wait for something known.

`python -m benchmarks.diagnoses --json FILE` prints a table; `--only TEXT` takes some of the scenarios. Sleeps take most
of the time, so a busy machine changes the diagnoses little. It runs with earlier commits too, to compare them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.waits import SCENARIOS, Scenario, memory_of, open_scenario, train, write_images
from energon_dali import get_loader
from energon_dali.diagnosis.bench import bench
from energon_dali.diagnosis.rates import Setting
from energon_dali.diagnosis.tune import tune
from energon_dali.integrations.loader_panel import LoaderPanel
from energon_dali.loader import auto_workers

_AUTO_SECONDS = 18.0
_WORKERS = (1, 2, 4, 8)


def examine(scenario: Scenario, folder: Path, seconds: float) -> dict[str, Any]:
    """Returns what the tools say about a scenario.

    Args:
        scenario: Which.
        folder: Its images.
        seconds: Time of each measurement.
    """

    def opened(setting: Setting) -> Any:
        return open_scenario(scenario, folder, setting.num_workers)

    with memory_of(scenario, folder):
        measured = bench(opened, [Setting(count) for count in _WORKERS], seconds=seconds)
        tuned = tune(opened, num_streams=8, seconds=5, most_workers=4, decoders=("own",))
        with get_loader(open_scenario(scenario, folder, 2)) as loader:
            batches = iter(loader)
            train(batches, scenario.step_seconds, 2 * seconds)
            panel = LoaderPanel(loader).lines()[0]
            cause = _cause(loader)
        auto_workers.WINDOW_SECONDS, auto_workers.WINDOW_BATCHES = seconds, 5
        with get_loader(open_scenario(scenario, folder, "auto")) as loader:
            train(iter(loader), scenario.step_seconds, _AUTO_SECONDS)
            chosen = loader.worker_config.num_workers
            reason = getattr(loader._auto, "reason", "")
    rates = {one.setting.num_workers: one.samples_per_second for one in measured.loaders}
    return {
        "scenario": scenario.name,
        "right": list(scenario.causes),
        "cause": cause,
        "bench": list(measured.advice),
        "tune": {"setting": str(tuned.setting), "says": tuned.as_dict()["samples_per_second"], **_rate_of(tuned)},
        "panel": panel,
        "auto": {"workers": chosen, "reason": reason, "of_best": rates.get(chosen, 0.0) / max(rates.values())},
        "rates": rates,
    }


def _cause(loader: Any) -> str | None:
    try:
        from energon_dali.loader.advice import diagnose
        from energon_dali.loader.host_memory import memory_left
    except ImportError:
        return None
    return diagnose(loader.stats(), num_workers=2, memory=memory_left()).cause


def _rate_of(tuned: Any) -> dict[str, Any]:
    return {"advice": list(getattr(tuned, "advice", ())), "estimate": tuned.is_estimate}


def main() -> None:
    """Runs the scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=2.5)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {large: write_images(Path(scratch, str(large)), large=large) for large in (False, True)}
        for scenario in SCENARIOS:
            if options.only not in scenario.name:
                continue
            found.append(examine(scenario, folders[scenario.large_images], options.seconds))
            print(json.dumps(found[-1], indent=1), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({"scenarios": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
