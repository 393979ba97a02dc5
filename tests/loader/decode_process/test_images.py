"""Real images through both decoders and both readers: a decode process delivers what this process does, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    CaptioningSample,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.cli.media_options import check_image
from energon_dali.decode import RandomResizedCrop
from energon_dali.shards import prepare_dataset
from tests.loader.dataset_folder import FIELD_MAP, captioning_sample, write_shards
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

OPERATIONS = (RandomResizedCrop(24),)


class PilEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8", operations=OPERATIONS)

    @stateless
    def encode_sample(self, sample: CaptioningSample) -> Any:
        number = int(sample.__key__.removeprefix("k"))
        if number % 13 == 5:
            raise ValueError("a hook that fails now and then")
        image = sample.image.permute(1, 2, 0).float() - 127.0
        return CaptioningSample.derive_from(sample, image=image.clone(), caption=sample.caption.upper())


class DaliEncoder(PilEncoder):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=OPERATIONS, image_decode_device="cpu")


class NativeEncoder(PilEncoder):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=OPERATIONS, image_decode_device="cpu", feed="native")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    write_shards(folder, {f"k{number:04d}": captioning_sample(number) for number in range(60)})
    prepare_dataset(str(folder), split_patterns=[("train", ".*")], check_part=check_image)  # for feed="native"
    config = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
        "field_map": FIELD_MAP,
    }
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Gives torch one thread, as in a decode process: on a busy machine several wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def open_loader(folder: Path, encoder: type[Any], workers: int, process: bool) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2, global_error_handler=quiet)
    order = {"parallel_shard_iters": 1} if encoder is NativeEncoder else {"shuffle_buffer_size": 50}
    dataset = get_train_dataset(
        folder, worker_config=config, task_encoder=encoder(), batch_size=5, max_samples_per_sequence=10, **order
    )
    # DALI runs in this process as well, and does not survive a fork.
    method = "fork" if encoder is PilEncoder else "spawn"
    return get_savable_loader(dataset, decode_process=process, start_method=method)


@pytest.mark.parametrize(("encoder", "workers"), [(DaliEncoder, 1), (NativeEncoder, 0), (PilEncoder, 0)])
def test_batches_and_their_states_are_those_of_this_process(folder: Path, encoder: type[Any], workers: int) -> None:
    wanted, states = [], []
    with open_loader(folder, encoder, 0, False) as here:
        for batch in islice(here, 14):
            wanted.append(batch)
            states.append(here.save_state_rank())
    with open_loader(folder, encoder, workers, True) as there:
        there.restore_state_rank(json.loads(json.dumps(states[2])))
        for place, other in enumerate(wanted[3:], 3):
            one = next(iter(there))
            assert type(one) is type(other)
            for name in ("__key__", "caption", "__restore_key__", "__sources__"):
                assert getattr(one, name) == getattr(other, name)
            assert one.image.dtype == torch.float32
            assert torch.equal(one.image, other.image)
            found, expected = there.save_state_rank(), dict(states[place])
            # Failures are counted when they happen: those of samples that were read ahead may be in it, or not yet.
            kinds = [{one["kind"] for one in state.pop("failures", ())} for state in (found, expected)]
            assert found == expected
            assert all(len(ones) <= 1 for ones in kinds)
        again = there.restore_sample(one.__restore_key__)  # in this process
        assert torch.equal(again.image, one.image)
        stats = there.stats()
    assert stats.counts["failed.encode_sample"] >= 1
    assert {failure["stage"] for failure in stats.failures} == {"encode_sample"}
    assert stats.stage_seconds["encode_sample"] > 0
    assert sum(stats.routes.values()) >= 55
