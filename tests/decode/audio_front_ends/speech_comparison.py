"""Compares front ends of speech models with their processors: layouts, texts, masks and values."""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from energon_dali import AudioFrontEnd, batch_audio
from energon_dali.errors import DecodeError
from tests.decode.audio_front_ends.speech_cases import CASES, SpeechCase
from tests.decode.audio_front_ends.speech_recordings import Waveform, make_lengths, make_recording


@dataclass
class Tally:
    """What was compared, and what differs."""

    configurations: int = 0
    recordings: int = 0
    alone: int = 0
    """Recordings that were compared alone, bit for bit."""
    texts: int = 0
    refused: int = 0
    """Batches that the extractor itself fails on."""
    values: int = 0
    """Values in batches of several recordings."""
    unequal: int = 0
    """Those of them whose last bits differ."""
    largest: float = 0.0
    """Largest of these differences."""
    differences: list[str] = field(default_factory=list)
    """What is wrong, in words."""


def compare_case(case: SpeechCase, seed: int, *, configurations: int, batches: int, most: int = 4) -> Tally:
    """Returns the comparison of a case: the published configuration, then drawn ones."""
    draw, tally = random.Random(seed), Tally()
    for number in range(configurations):
        processor = case.make(None if number == 0 else draw)
        compare_processor(case, processor, draw, tally, batches=batches, most=most)
        tally.configurations += 1
    return tally


def compare_processor(
    case: SpeechCase, processor: Any, draw: random.Random, tally: Tally, *, batches: int, most: int = 4
) -> None:
    """Compares batches of recordings, each of them alone as well; adds to the tally what was found."""
    front_end = AudioFrontEnd.from_processor(processor)
    _compare_folder(case, processor, front_end, tally)
    rate, hop = front_end.sampling_rate, front_end.hop_length  # type: ignore[attr-defined]
    chunk = getattr(front_end, "chunk_samples", rate)
    edges = (hop, 2 * hop, 10 * hop, chunk, 2 * chunk, chunk // 2, case.least + 1)
    for _ in range(batches):
        size = draw.randint(1, most)
        longest = int(case.seconds * rate)
        lengths = make_lengths(draw, size, least=case.least, most=longest, edges=edges)
        waveforms = [make_recording(draw, length, rate, floor=case.floor) for length in lengths]
        where = f"{case.name} {lengths} {front_end}"
        try:
            inputs = [front_end.render(waveform) for waveform in waveforms]
        except DecodeError as error:
            tally.differences.append(f"{where}: {error}")
            continue
        pairs = zip(waveforms, inputs, strict=True)
        masks = [_compare_alone(case, processor, waveform, one, where, tally) for waveform, one in pairs]
        if size > 1:
            _compare_batch(case, processor, waveforms, inputs, masks, where, tally)
        tally.recordings += size


def _compare_folder(case: SpeechCase, processor: Any, front_end: AudioFrontEnd, tally: Tally) -> None:
    """Checks that a folder that the extractor was saved to gives the same front end, up to ids of its tokenizer."""
    inner = getattr(processor, "feature_extractor", processor)
    with tempfile.TemporaryDirectory() as folder:
        inner.save_pretrained(folder)
        around = {} if inner is processor else {"processor_class": type(processor).__name__}
        fields = {name: getattr(front_end, name) for name in ("audio_token", "audio_token_id")}
        for name in ("longest_seconds",):  # of the processor around it
            if hasattr(front_end, name) and around:
                fields[name] = getattr(front_end, name)
        path = Path(folder) / "preprocessor_config.json"
        text = path.read_text().rstrip().removesuffix("}").rstrip()
        extra = "".join(f', "{name}": "{value}"' for name, value in around.items())
        path.write_text(text.replace('"processor_class"', '"_processor_class"') + extra + "}")
        read = AudioFrontEnd.from_processor(folder, **fields)
    if read != front_end:
        tally.differences.append(f"{case.name}: a folder gives {read}, the object {front_end}")


def _compare_alone(
    case: SpeechCase, processor: Any, waveform: Waveform, made: Any, where: str, tally: Tally
) -> torch.Tensor | None:
    """Compares a recording alone, bit for bit; returns the processor's mask of the kind that depends on a batch."""
    front_end = made.front_end
    expected, texts = case.call(processor, [waveform])
    _check(made.layout == front_end.layout_of(len(waveform) / front_end.sampling_rate), f"{where}: layout_of", tally)
    if texts is not None:
        _check(front_end.audio_text(made.layout) == texts[0], f"{where}: text of {len(waveform)} samples", tally)
        expanded = front_end.expand_text(f"a {front_end.audio_token} b", [made.layout])
        _check(expanded == f"a {texts[0]} b", f"{where}: expanded text", tally)
        _check(front_end.text_tokens(made.layout) == made.num_tokens, f"{where}: text_tokens", tally)
        tally.texts += 1
    found = batch_audio([made])
    if not _same_form(found, expected, where, tally):
        return None
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            _check(torch.equal(found[name], value), f"{where}: {name} of {len(waveform)} samples alone", tally)
    tally.alone += 1
    return expected.get(case.alone)


def _compare_batch(
    case: SpeechCase,
    processor: Any,
    waveforms: list[Waveform],
    inputs: list[Any],
    masks: list[torch.Tensor | None],
    where: str,
    tally: Tally,
) -> None:
    try:
        expected, _ = case.call(processor, waveforms)
    except RuntimeError:  # that of Phi-4 fails where the last windows of short recordings differ in number
        tally.refused += 1
        return
    found = batch_audio(inputs)
    if not _same_form(found, expected, where, tally):
        return
    for name, value in expected.items():
        if not isinstance(value, torch.Tensor):
            continue
        if name == case.alone:
            counts = [0 if mask is None else int(mask.sum()) for mask in masks]
            _check(found[name].sum(1).tolist() == counts, f"{where}: {name} is not that of each alone", tally)
            _check(bool(((value - found[name]).sum(1) <= 1).all()), f"{where}: {name}", tally)
        elif value.is_floating_point():
            unlike = (found[name] - value).abs()
            tally.values += value.numel()
            tally.unequal += int((unlike != 0).sum())
            tally.largest = max(tally.largest, float(unlike.max()))
            _check(bool((unlike <= case.tolerance).all()), f"{where}: {name} by {float(unlike.max()):g}", tally)
        else:
            _check(torch.equal(found[name], value), f"{where}: {name} in a batch", tally)


def _same_form(found: dict[str, Any], expected: dict[str, Any], where: str, tally: Tally) -> bool:
    """Returns whether keys, shapes and types are the same; converts the processor's arrays."""
    for name, value in list(expected.items()):
        if hasattr(value, "shape") and not isinstance(value, torch.Tensor):
            expected[name] = torch.as_tensor(value)
    forms = [
        {name: (value.shape, value.dtype) if hasattr(value, "shape") else value for name, value in one.items()}
        for one in (found, expected)
    ]
    _check(forms[0] == forms[1], f"{where}: {forms[0]} instead of {forms[1]}", tally)
    return forms[0] == forms[1]


def _check(right: bool, problem: str, tally: Tally) -> None:
    if not right:
        tally.differences.append(problem)


def run(name: str, seed: int, configurations: int, batches: int) -> tuple[Tally, float]:
    """Returns the comparison of the case of this name, and its CPU seconds. For a process of its own."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # bands without a frequency
    transformers.logging.set_verbosity_error()  # recordings that are cut off
    start = time.process_time()
    case = next(case for case in CASES if case.name == name)
    tally = compare_case(case, seed, configurations=configurations, batches=batches)
    return tally, time.process_time() - start
