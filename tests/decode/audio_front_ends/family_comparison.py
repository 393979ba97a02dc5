"""Compares what a front end makes of recordings with what its extractor returns for them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers

from energon_dali.decode.audio_front_ends import AudioFrontEnd, AudioInput, batch_audio
from energon_dali.decode.audio_front_ends.clap import Clap
from energon_dali.decode.audio_front_ends.vocoders import SpeechT5Target
from energon_dali.errors import ConfigError
from tests.decode.audio_front_ends.family_cases import FAMILIES, AudioCase
from tests.decode.audio_front_ends.recordings import Waveform, make_batch


@dataclass
class Tally:
    """What was compared."""

    recordings: int = 0
    batches: int = 0
    values: int = 0
    different: int = 0
    """Values that are not bit-equal."""
    largest: float = 0.0
    """Largest difference."""

    def add(self, other: Tally) -> None:
        """Adds what another comparison counted."""
        self.recordings += other.recordings
        self.batches += other.batches
        self.values += other.values
        self.different += other.different
        self.largest = max(self.largest, other.largest)


def make_extractor(case: AudioCase) -> Any:
    """Returns the extractor of a case."""
    return getattr(transformers, case.extractor)(**case.config)


def make_front_ends(case: AudioCase, extractor: Any) -> list[AudioFrontEnd]:
    """Returns the front ends for the extractor, and for the file that it is saved to."""
    kind: Any = SpeechT5Target if case.options.get("target") else AudioFrontEnd
    with tempfile.TemporaryDirectory() as folder:
        extractor.save_pretrained(folder)
        path = Path(folder) / "preprocessor_config.json"
        # Lengths in milliseconds are not saved, and those in samples are not read.
        saved = {**json.loads(path.read_text()), **case.config, "feature_extractor_type": case.extractor}
        for name in ("frame_length", "hop_length"):
            if case.extractor.startswith("Gemma"):
                saved.pop(name, None)
        path.write_text(json.dumps(saved))
        return [kind.from_processor(extractor, **case.fields), kind.from_processor(folder, **case.fields)]


def call_extractor(case: AudioCase, extractor: Any, batch: list[Waveform], inputs: list[AudioInput]) -> dict[str, Any]:
    """Returns what the extractor returns for a batch, with the random numbers of the front end."""
    options = {key: value for key, value in case.options.items() if key != "target"}
    if not case.extractor.startswith("Gemma"):
        options["sampling_rate"] = extractor.sampling_rate
    if case.options.get("target"):
        return dict(extractor(audio_target=batch, return_tensors="pt", **options))
    if case.extractor == "UnivNetFeatureExtractor" and len(batch) > 1:
        return _univnet_batch(extractor, batch, inputs, options)
    if case.extractor == "UnivNetFeatureExtractor":
        options["generator"] = np.random.default_rng(inputs[0].seed)
    with random_numbers_of(inputs):
        return dict(extractor(batch, return_tensors="pt", **options))


def _univnet_batch(extractor: Any, batch: list[Waveform], inputs: list[AudioInput], options: Any) -> dict[str, Any]:
    """Returns the extractor's batch, with the noise of each recording from a generator of its own."""
    made = dict(extractor(batch, return_tensors="pt", **options))
    if "noise_sequence" in made:
        length = made["noise_sequence"].shape[1]
        noise = [extractor.generate_noise(length, np.random.default_rng(entry.seed)) for entry in inputs]
        made["noise_sequence"] = torch.from_numpy(np.stack(noise))
    return made


@contextmanager
def random_numbers_of(inputs: list[AudioInput]) -> Iterator[None]:
    """Makes NumPy's global generator return what CLAP's front end draws."""
    front_end = inputs[0].front_end
    if not isinstance(front_end, Clap):
        yield
        return
    choices: list[int] = []
    integers: list[int] = []
    for entry in inputs:
        if entry.layout.num_samples > front_end.window_samples:
            if front_end.longer == "rand_trunc":
                whole = torch.arange(entry.layout.num_samples)
                integers.append(int(front_end.choose(whole, entry.seed)[0]))
            elif len(entry.features) != front_end.window_frames:
                choices += front_end.starts_of(entry)
    if front_end.longer == "fusion":
        integers.append(front_end.marked_of(inputs))

    def choose(values: Any) -> int:
        chosen = choices.pop(0)
        assert chosen in values
        return chosen

    def draw(low: int, high: int) -> int:
        drawn = integers.pop(0)
        assert low <= drawn < high
        return drawn

    with mock.patch.object(np.random, "choice", choose), mock.patch.object(np.random, "randint", draw):
        yield


def compare(case: AudioCase, seed: int, *, batches: int = 2, size: int = 5) -> Tally:
    """Compares batches of random recordings, and the first recording of each alone; returns what was compared.

    Raises:
        AssertionError: Keys, shapes, types, masks or lengths differ, or values by more than the family's tolerance.
    """
    family = FAMILIES[case.extractor]
    extractor = make_extractor(case)
    front_end, saved = make_front_ends(case, extractor)
    assert front_end == saved, (front_end, saved)
    generator = np.random.default_rng([seed, 33])
    rate, tally = extractor.sampling_rate, Tally()
    least, most = int(family.least_seconds * rate), int(family.most_seconds * rate)
    for number in range(batches):
        waveforms = make_batch(generator, size, rate, least=least, most=most, channels=front_end.channels)
        if front_end.config().get("padding") == "none":
            shortest = min(waveform.shape[-1] for waveform in waveforms)
            waveforms = [waveform[..., :shortest] for waveform in waveforms]
        inputs = [front_end.render(waveform, seed=100 * number + row) for row, waveform in enumerate(waveforms)]
        for entry, waveform in zip(inputs, waveforms, strict=True):
            assert entry.layout == front_end.layout_of(waveform.shape[-1] / rate)
        for some in (slice(0, None), slice(0, 1)):
            try:
                made = batch_audio(inputs[some])
            except ConfigError:
                made = {}
            try:
                expected = call_extractor(case, extractor, waveforms[some], inputs[some])
            except (ValueError, IndexError):  # rows of different lengths
                assert not made, case
                continue
            tally.add(compare_batches(case, made, expected))
            if some.stop == 1:
                key = front_end.model_keys[0]
                np.testing.assert_array_equal(inputs[0].values.numpy(), made[key][0].numpy())
        tally.recordings += size
        tally.batches += 1
    return tally


def compare_batches(case: AudioCase, made: dict[str, Any], expected: dict[str, Any]) -> Tally:
    """Compares two batches; returns what was compared.

    Raises:
        AssertionError: They differ by more than the family's tolerance.
    """
    family, tally = FAMILIES[case.extractor], Tally()
    assert made.keys() == expected.keys(), (case, made.keys(), expected.keys())
    for key, values in expected.items():
        assert made[key].shape == values.shape, (case, key, made[key].shape, values.shape)
        assert made[key].dtype == values.dtype, (case, key, made[key].dtype, values.dtype)
        if not values.is_floating_point():
            np.testing.assert_array_equal(made[key].numpy(), values.numpy(), str(case))
            continue
        ours, theirs = made[key].numpy(), values.numpy()
        unequal = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
        tally.values += ours.size
        if not unequal.any():
            continue
        tally.different += int(unequal.sum())
        tally.largest = max(tally.largest, float(np.abs(ours - theirs)[unequal].max()))
        if family.deviation:
            assert tally.largest <= family.deviation, (case, key, tally.largest)
        else:
            np.testing.assert_array_max_ulp(ours, theirs, maxulp=family.ulps)
    return tally
