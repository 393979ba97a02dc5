"""SampleDecoder decodes blocks sample by sample, and only a bad sample fails."""

from __future__ import annotations

from energon_dali.decode import DecodeFailure, MediaHandle, SampleDecoder
from tests.decode.sample_images import sample_images

JPEG = sample_images()["jpeg-420"]


def test_blocks() -> None:
    decoder = SampleDecoder(image_decode="rgb8")
    assert decoder.placement == "worker"
    good = decoder.make_handle("jpg", JPEG)
    cut = MediaHandle("jpg", JPEG[:-50], "jpeg", 157, 118, decoder.spec)
    first, failed, last = decoder.decode_block([good, cut, good])
    assert not isinstance(first, DecodeFailure)
    assert not isinstance(last, DecodeFailure)
    assert (first.route, first.value.tobytes()) == ("pil", last.value.tobytes())
    assert isinstance(failed, DecodeFailure)
    assert (failed.format, failed.route) == ("jpeg", "pil")
    assert "truncated" in failed.reason
    assert decoder.submit_block([]).result() == []
    assert good.decode().tobytes() == first.value.tobytes()
