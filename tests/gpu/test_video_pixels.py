"""Clips of the device compared with PyAV by codec, depth and colours; DALI's errors for videos it cannot decode."""

from __future__ import annotations

import json
from typing import Any

import pytest

from energon_dali import SampleDecoder
from energon_dali.decode import Decoded
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.dali.video.eligibility import is_eligible_video
from energon_dali.decode.pyav import stage_clips
from tests.av.corpus import VideoRecipe, encode_video
from tests.decode.tolerance import CLIPS, explain_difference
from tests.gpu.observations import Observations
from tests.gpu.test_pixels import compare
from tests.gpu.where import Where, ending_of, run_program

pytestmark = pytest.mark.costly_dry_run  # tests/decode/dali tests the same on the CPU

RECIPES = {
    f"{codec} {colour}{' full' if full else ''}": VideoRecipe(
        codec, container, size=(320, 240), colour=colour, full_range=full, saturated=saturated
    )
    for codec, container in (("h264", "mp4"), ("hevc", "mkv"), ("vp9", "webm"))
    for colour, full, saturated in (("bt601", False, False), ("bt709", False, False), ("bt709", True, False))
}

UNSUITABLE = """
import json, logging, sys
sys.path.insert(0, ".")
import torch
from energon_dali.decode.clips import VideoClips
from energon_dali.decode.dali.decoder import DaliDecoder
from energon_dali.decode.dali.runtime.device import resolve_device
from energon_dali.decode.pyav import stage_clips
from energon_dali.decode.video_backends.choice import BACKENDS
from tests.av.corpus import VideoRecipe, encode_video
kind, codec, container, pixel_format = sys.argv[1:]
said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("energon_dali.decode.dali").setLevel(logging.DEBUG)
logging.getLogger("energon_dali.decode.dali").addHandler(Keep())
spec = VideoClips(1, 4)
data = encode_video(VideoRecipe(codec, container, size=(320, 240), pixel_format=pixel_format))
handle, file = stage_clips(container, data, spec)
file.close()
print(json.dumps({"staged": handle.profile}), flush=True)
decoder = DaliDecoder(av_decode=spec, video_decode_device=kind)
stream = torch.cuda.current_stream() if kind == "gpu" else None
device = resolve_device(kind, "video")
(outcome,) = BACKENDS["dali"].submit(decoder.engine_options, device, [handle], stream=stream).result(60)
print(json.dumps({"outcome": type(outcome).__name__, "route": outcome.route, "said": said}), flush=True)
"""


@pytest.mark.parametrize("name", RECIPES)
def test_colours_and_pixels(where: Where, observe: Observations, name: str) -> None:
    data, spec = encode_video(RECIPES[name]), VideoClips(2, 6, layout="FHWC")
    handle, file = stage_clips("mp4", data, spec)
    file.close()
    assert is_eligible_video(handle, "gpu")  # also in a dry run
    (outcome,) = where.decoder(av_decode=spec).decode_block([handle])
    assert isinstance(outcome, Decoded), outcome
    ours = outcome.value.frames.cpu().flatten(0, 1).numpy()
    theirs = SampleDecoder(av_decode=spec).stage("mp4", data).frames.flatten(0, 1).numpy()
    observe(route=outcome.route, **compare(ours, theirs))
    problems = [explain_difference(a, b, CLIPS) for a, b in zip(ours, theirs, strict=True)]
    assert problems == [None] * len(problems)


@pytest.mark.parametrize(
    ("codec", "container", "pixel_format"),
    [
        ("av1", "mp4", "yuv420p"),
        ("hevc", "mkv", "yuv420p10le"),
        ("vp9", "webm", "yuv444p"),
        ("h264", "mp4", "yuv420p10le"),
        ("h264", "mp4", "yuv444p"),
        ("vp8", "webm", "yuv420p"),
    ],
)
def test_what_dali_says_of_streams_that_are_kept_from_it(
    where: Where, observe: Observations, codec: str, container: str, pixel_format: str
) -> None:
    """In its own process, without the checks: an error, wrong frames, or the end of the process."""
    done = run_program(UNSUITABLE, where.kind, codec, container, pixel_format)
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    observe(ending=ending_of(done), lines=lines, log=done.stderr[-500:])
    assert "staged" in lines[0], done.stderr[-2000:]  # the test itself works
    if where.kind == "cpu":
        assert lines[1]["route"] == ("dali-cpu" if codec in ("vp8", "vp9") else "fallback")
        assert bool(lines[1]["said"]) == (lines[1]["route"] == "fallback")
