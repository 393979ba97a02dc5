"""The decoder that needs only a CPU: it decodes with PIL and PyAV in the process that reads the sample."""

from __future__ import annotations

from energon_dali.decode.interface import Placement
from energon_dali.decode.media_decoder import MediaDecoder


class SampleDecoder(MediaDecoder):
    """Decodes each part in the process that reads it: images with PIL, video and audio with PyAV. Energon's default.

    Takes the options of `MediaDecoder`. Without operations the values equal those of webdataset bit for bit.

        decoder = SampleDecoder(image_decode="torchrgb8", operations=[RandomResizedCrop(224), HorizontalFlip()])
        decoder.decode("0001.jpg", raw)    # uint8[3, 224, 224]
    """

    placement: Placement = "worker"
