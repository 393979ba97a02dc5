"""Metadatasets on a web server: nested files, datasets and join indices by URL."""

from __future__ import annotations

import http.server
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_dali import DefaultTaskEncoder, get_val_dataset
from energon_dali.metadataset.resolve import resolve
from energon_dali.shards.storage import retry
from tests.datasets.oracle import check_resume, config
from tests.shards.test_storage import Handler

GOLDEN = Path(__file__).parent.parent / "data" / "energon_7_4_1_mix"


def test_files_datasets_and_join_indices_are_read_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)  # every third request fails
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(GOLDEN))) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{web.server_address[1]}"
            sources = resolve(f"{url}/second.yaml", "train").sources
            assert [source.path for source in sources] == [
                f"{url}/{n}" for n in ("images", "texts", "crude", "captions")
            ]

            def make(base: object) -> Any:
                return get_val_dataset(
                    f"{base}/join.yaml",
                    split_part="val",
                    worker_config=config(2),
                    batch_size=None,
                    task_encoder=DefaultTaskEncoder(),
                )

            here = [(sample.__key__, sample.text) for sample in make(GOLDEN)]
            assert [(sample.__key__, sample.text) for sample in make(url)] == here
            assert len(here) == 11
            check_resume(lambda: make(url), count=4, view=lambda sample: sample.__key__)
        finally:
            web.shutdown()
            thread.join()
