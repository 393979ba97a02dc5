"""Pages of Nougat, whose size is known only after decoding: a page that does not fit is left out by both decoders."""

from __future__ import annotations

import numpy as np
from PIL import Image

from energon_dali import FrontEnd
from energon_dali.decode import DecodeFailure
from tests.decode.front_ends.comparison import decoders
from tests.decode.sample_images import encode


def test_a_page_that_does_not_fit_fails_alone() -> None:
    config = {"image_processor_type": "NougatImageProcessor", "size": {"height": 52, "width": 146}, "do_resize": False}
    front_end = FrontEnd.from_processor({**config, "do_convert_rgb": True})
    noise = np.random.default_rng(3)
    pages = [Image.fromarray(noise.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in ((60, 103), (40, 103))]
    for decoder in decoders(front_end):
        handles = [decoder.stage("png", encode(page, "PNG")) for page in pages]
        failed, made = decoder.decode_block(handles)
        assert isinstance(failed, DecodeFailure)
        assert "does not fit into 146 x 52" in failed.reason
        assert not isinstance(made, DecodeFailure)
