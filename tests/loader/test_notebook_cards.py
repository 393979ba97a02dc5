"""Cards of datasets, loaders, statistics and plans: what they show costs nothing and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from energon_dali import (
    SampleDecoder,
    SavableDataset,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    plan_steps,
)
from energon_dali.datasets.source import SourceDataset, source_of
from tests.integrations.observed import everything
from tests.loader.dataset_folder import captioning_dataset
from tests.samples.test_cards import Page


class Encoder(TaskEncoder):  # type: ignore[type-arg]
    decoder = SampleDecoder(image_decode="torchrgb8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("cards"))


def config(num_workers: int = 0) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=num_workers)


def test_a_dataset_shows_its_tree_and_reads_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = get_train_dataset(folder, worker_config=config(), batch_size=4, task_encoder=Encoder())
    monkeypatch.setattr(SourceDataset, "open", lambda *_: pytest.fail("a stream was opened"))
    monkeypatch.setattr(SavableDataset, "_live", lambda _: pytest.fail("the iteration began"))
    page = Page(dataset._repr_html_())
    for line in str(dataset).splitlines():
        assert " ".join(line.split()) in " ".join(page.text.split())
    with pytest.raises(pytest.fail.Exception, match="the iteration began"):
        iter(dataset)


def test_a_loader_with_workers_starts_none(folder: Path) -> None:
    dataset = get_train_dataset(folder, worker_config=config(2), batch_size=4, task_encoder=Encoder())
    with get_savable_loader(dataset) as loader:
        page = Page(loader._repr_html_())
        assert "no batch was taken yet" in page.text
        assert loader._prefetcher is None
        assert loader.stats().elapsed_seconds == 0


def test_a_running_loader_goes_on_where_it_was(folder: Path) -> None:
    keys = []
    for shown in (False, True):
        dataset = get_train_dataset(folder, worker_config=config(), batch_size=4, task_encoder=Encoder())
        with get_savable_loader(dataset) as loader:
            batches = iter(loader)
            seen = []
            for _ in range(4):
                seen.append(next(batches).__key__)
                if shown:
                    page = Page(loader._repr_html_())
                    assert "running" in page.text
                    assert "trainer blocked" in Page(loader.stats()._repr_html_()).text
            state = loader.save_state_rank()
        keys.append((seen, state))
    assert keys[0] == keys[1]


def test_statistics_show_stages_and_failures() -> None:
    statistics = everything()
    page = Page(statistics._repr_html_())
    assert f"{statistics.batches:,} in" in page.text
    assert "time in read" in page.text
    for kind in statistics.failure_kinds:
        assert kind[:200] in page.text
    assert repr(statistics).startswith(f"LoaderStatistics({statistics.batches:,} batches in")


def test_plans_show_their_order_and_what_they_hold(folder: Path) -> None:
    dataset = get_train_dataset(folder, worker_config=config(), batch_size=4, task_encoder=Encoder())
    planned = plan_steps(dataset, range(3, 6))
    page = Page(planned._repr_html_())
    for batch in planned:
        assert f"step {batch.step}, rank 0" in page.text
        assert ", ".join(sample.key for sample in batch.samples) in page.text
    plan = source_of(dataset).plan
    assert str(plan) in Page(plan._repr_html_()).text
