"""Runs one candidate: a task as JSON on the command line, one line with the measurement as JSON on standard output."""

from __future__ import annotations

import importlib
import json
import sys

from benchmarks.candidates.task import LEFT_OUT, RESULT, LeftOutError, Task
from benchmarks.machine import describe_versions


def main() -> None:
    """Measures the task in argv[1] with the program that it names."""
    task = Task.from_json(sys.argv[1])
    program = importlib.import_module(f"benchmarks.candidates.{task.program}")
    try:
        numbers = program.measure(task)
    except LeftOutError as error:
        print(LEFT_OUT + " ".join(str(error).split()), flush=True)
        return
    print(RESULT + json.dumps({"numbers": numbers, "versions": describe_versions()}), flush=True)


if __name__ == "__main__":
    main()
