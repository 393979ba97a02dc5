"""Log-mel features made on the GPU are those of the CPU, within the tolerance that `LogMel` states."""

from __future__ import annotations

import torch

from energon_dali import LogMel
from tests.decode.test_log_mel import synthetic_speech
from tests.gpu.where import Where

TOLERANCE = 5e-4
"""Two FFTs differ by about 1e-7 of the loudest amplitude. The floor is at 1e-4 of it, where that is 1e-3, and 2e-4 as a
feature."""


def test_features_are_those_of_the_cpu(where: Where) -> None:
    speech = torch.from_numpy(synthetic_speech(2.0))
    waveforms = torch.stack([speech, 0.01 * speech, torch.zeros_like(speech)])
    for features in (LogMel(), LogMel(num_mels=128, duration_seconds=3), LogMel(duration_seconds=None)):
        made = features(waveforms.to(where.torch_device))
        assert made.device.type == where.torch_device
        assert (made.cpu() - features(waveforms)).abs().max() <= TOLERANCE
