"""Programs that call hooks, or iterate datasets, between `worker_activate` and `worker_deactivate`, as with Energon."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from energon_dali import TaskEncoder, WorkerConfig, stateless
from energon_dali.errors import ConfigError

CONFIG = WorkerConfig(rank=1, world_size=2, num_workers=2, seed_offset=7)
"""Its streams are 1 and 3."""


class Drawing(TaskEncoder[Any, Any, Any, Any]):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        return self.current_sample_index, self.current_batch_index, random.random()


@pytest.fixture(autouse=True)
def _deactivated() -> Iterator[None]:
    yield
    WorkerConfig.active_worker_config = None
    CONFIG.worker_deactivate()


def test_hooks_of_an_active_worker_are_seeded_and_numbered() -> None:
    encoder = Drawing()
    with pytest.raises(ConfigError, match="outside of a hook"):
        encoder.encode_sample(None)
    CONFIG.worker_activate(3)
    assert WorkerConfig.active_worker_config is CONFIG
    first = encoder.encode_sample(None)
    random.random()
    assert encoder.encode_sample(None) == first
    assert first[:2] == (6, 6), "sample 3 of the first of two workers"
    CONFIG.worker_push_sample_index(5)
    assert encoder.encode_sample(None)[:2] == (10, 6)
    assert encoder.encode_sample(None) != first
    assert (CONFIG.active_worker_sample_index, CONFIG.active_worker_batch_index) == (10, 6)
    assert CONFIG.worker_pop_sample_index() == 5
    CONFIG.worker_deactivate()
    assert WorkerConfig.active_worker_config is None
    with pytest.raises(ConfigError, match="only between worker_activate"):
        CONFIG.worker_push_sample_index(0)


def test_the_worker_may_be_given_by_its_number_in_the_job() -> None:
    CONFIG.worker_activate(0, override_global_rank=3)
    assert (CONFIG.rank_worker_id(), CONFIG.global_worker_id()) == (1, 3)
    seed = CONFIG.worker_seed()
    CONFIG.worker_deactivate()
    assert seed == CONFIG.worker_seed(override_local_worker_id=1)
    with pytest.raises(ConfigError, match=r"not a stream of rank 1: give one of \[1, 3\]"):
        CONFIG.worker_activate(0, override_global_rank=2)


def test_a_second_activation_is_an_error_unless_the_program_cleared_the_first() -> None:
    CONFIG.worker_activate(0)
    with pytest.raises(ConfigError, match=r"Call worker_deactivate\(\)"):
        CONFIG.worker_activate(1)
    WorkerConfig.active_worker_config = None
    CONFIG.worker_activate(1)
    assert CONFIG.active_worker_sample_index == 2
