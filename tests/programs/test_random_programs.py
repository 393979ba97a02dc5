"""A few random programs and compositions; `make test-faults` runs hundreds, with kills and an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.part import sampled
from tests.programs.folders import write_folders
from tests.programs.oracle import check_composition, check_tree
from tests.programs.run import check, valid_program
from tests.shared_result import shared_result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, _ = shared_result(tmp_path_factory, "programs", lambda base: str(write_folders(base, in_process=True)))
    return place


@pytest.mark.parametrize("seed", sampled([0, 3, 8, 11, 12, 15], 2))
def test_an_interrupted_program_continues_exactly(seed: int, folder: Path) -> None:
    program, expected = valid_program(seed, folder, in_process=True)
    check(program, expected, str(folder))


@pytest.mark.parametrize("seed", sampled(range(8), 2))
def test_a_composition_delivers_its_plan_less_what_fails(seed: int, folder: Path) -> None:
    check_composition(seed, str(folder))


@pytest.mark.parametrize("seed", sampled(range(10), 2))
def test_a_tree_over_batches_delivers_its_plan(seed: int, folder: Path) -> None:
    check_tree(seed, str(folder))
