"""DALI settings: invalid ones are rejected, valid ones reach the graph, and none changes an image on the CPU."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from energon_dali.decode import DaliDecoder, Decoded
from energon_dali.decode.dali import DaliTuning
from energon_dali.decode.dali.images import graph
from energon_dali.decode.dali.images.graph import ImageGraph
from energon_dali.decode.dali.runtime.device import Device, load_dali
from energon_dali.errors import ConfigError
from tests.decode.sample_images import sample_images


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hw_decoder_load": 1.5}, "hw_decoder_load=1.5 is invalid"),
        ({"hw_decoder_load": "all"}, "hw_decoder_load='all' is invalid"),
        ({"preallocate_width_hint": -1}, "preallocate_width_hint=-1 is invalid"),
        ({"device_memory_padding": 2.5}, "device_memory_padding=2.5 is invalid"),
        ({"device_memory_padding": 4 << 30}, "a whole number from 0 to 2147483647"),
        ({"copies_to_torch": 1}, "copies_to_torch=1 is invalid"),
        ({"runs_in_flight": 0}, "runs_in_flight=0 is invalid"),
        ({"runs_in_flight": 9}, "more than 8"),
    ],
)
def test_refuses_settings(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DaliTuning(**options)


def test_the_decoder_takes_nothing_else_and_tells_them() -> None:
    with pytest.raises(ConfigError, match="is not a DaliTuning"):
        DaliDecoder(tuning={"hw_decoder_load": 1})  # type: ignore[arg-type]
    decoder = pickle.loads(pickle.dumps(DaliDecoder(tuning=DaliTuning(hw_decoder_load=0.9))))
    assert decoder.config()["tuning"]["hw_decoder_load"] == 0.9
    assert decoder.engine_options.on(Device("gpu", 0), most_samples=16).max_batch_size == 16


def test_every_setting_is_an_argument_of_dalis_decoder_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI checks the names when a graph is defined, which needs no GPU; only building the graph does."""
    dali, seen = load_dali(), {}
    tuning = DaliTuning(hw_decoder_load=0.25, preallocate_width_hint=1920, preallocate_height_hint=1080)
    options = DaliDecoder(tuning=tuning).engine_options.on(Device("gpu", 0))
    image = dali.fn.decoders.image
    monkeypatch.setattr(dali.fn.decoders, "image", lambda *args, **given: seen.update(given) or image(*args, **given))
    with dali.Pipeline(batch_size=1, num_threads=1, device_id=None):
        graph.define_pipeline(ImageGraph.from_spec(DaliDecoder(image_decode="rgb8").spec), options)
    assert {name: seen[name] for name in tuning.image_decoder_options} == tuning.image_decoder_options
    assert seen["device"] == "mixed"


@pytest.mark.parametrize("runs", [1, 2, 4])
def test_runs_in_flight_change_no_image_and_no_order(runs: int) -> None:
    decoder = DaliDecoder(
        image_decode="torchrgb8", image_decode_device="cpu", max_batch_size=3, tuning=DaliTuning(runs_in_flight=runs)
    )
    names = ("jpeg-420", "png-rgb", "jpeg-1x1", "bmp-rgb", "jpeg-411")
    blocks = [
        [decoder.stage("jpg", sample_images()[name]) for name in names[turn:] + names[:turn]] for turn in range(5)
    ]
    futures = [decoder.submit_block(block) for block in blocks]
    for future, block in zip(futures, blocks, strict=True):
        for outcome, handle in zip(future.result(60), block, strict=True):
            assert isinstance(outcome, Decoded)
            assert torch.equal(outcome.value, handle.decode())
