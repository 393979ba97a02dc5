"""Mutated video and audio: data or a DecodeError, the same with both decoders, and the rest of the block arrives."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from random import Random
from typing import Any

import torch

from energon_dali import DaliDecoder, SampleDecoder, VideoClips
from energon_dali.av import AVDecoder, AVLimits, get_clips_uniform
from energon_dali.decode.interface import Decoded, DecodeFailure, MediaHandle
from energon_dali.errors import DecodeError
from tests.av.corpus import AUDIOS, FUZZED, audio_file, video_file
from tests.decode.mutations import mutate
from tests.faults.campaign import Campaign, Case, Lost, Outcome

CLIPS = VideoClips(2, 3, clip_duration_seconds=0.4, size=(48, 32))
LIMITS = AVLimits(max_bytes=1 << 26, max_frames=1_000, max_pixels=1 << 20, max_seconds=20)


def mutate_media(data: bytes, random: Random) -> bytes:
    """Returns a file that is cut off, or has changed headers or flipped bits."""
    if random.random() < 0.5:
        return mutate(data, random)
    broken = bytearray(data[: random.randrange(1, len(data))] if random.random() < 0.4 else data)
    for _ in range(random.choice((1, 10, 100))):
        broken[random.randrange(len(broken))] ^= 1 << random.randrange(8)
    return bytes(broken)


def prepare(folder: Path) -> Case:
    """Encodes the good files; the case mutates one."""
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    files = {name: audio_file(name) if name in AUDIOS else video_file(name) for name in FUZZED}
    good = video_file("h264-b-mp4")
    names = list(files)
    decoders: dict[str, Any] = {
        "pyav": SampleDecoder(av_decode=CLIPS),
        "dali": DaliDecoder(av_decode=CLIPS, image_decode_device="cpu", video_decode_device="cpu"),
    }
    expected: dict[tuple[int, str], Any] = {}

    def clips_of(name: str, raw: bytes) -> Any:
        """Returns what a decoder makes of a file that is between two good ones in a block."""
        decoder = decoders[name]
        if (os.getpid(), name) not in expected:
            expected[os.getpid(), name] = finished(decoder, [decoder.stage("mp4", good)])[0].value.frames
        try:
            staged = decoder.stage("mp4", raw)
        except DecodeError as error:
            return DecodeFailure(error.reason, error.format, error.route)
        outcomes = finished(decoder, [decoder.stage("mp4", good), staged, decoder.stage("mp4", good)])
        for neighbour in (outcomes[0], outcomes[2]):
            if not isinstance(neighbour, Decoded) or not torch.equal(
                neighbour.value.frames, expected[os.getpid(), name]
            ):
                raise Lost(f"{name}: a neighbour of the damaged file is {neighbour}")
        return outcomes[1]

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        name = names[number % len(names)]
        raw = mutate_media(files[name], random)
        data = errors = 0
        with AVDecoder(
            raw, damaged=random.choice(("error", "partial")), missing="empty", threads=1, limits=LIMITS
        ) as one:
            for call in (
                one.get_metadata,
                lambda: one.get_frames(True),
                lambda: one.get_clips([(0.5, 0.6)]),
                lambda: get_clips_uniform(one, 0.1, 2, request_audio=True),
            ):
                try:
                    call()
                    data += 1
                except DecodeError:
                    errors += 1
        if name not in AUDIOS:
            kinds = {which: type(clips_of(which, raw)).__name__ for which in decoders}
            if len(set(kinds.values())) > 1:
                raise Lost(f"{name}: the decoders disagree: {kinds}")
        return Outcome(survived=int(data > 0), refused=int(data == 0))

    return case


def finished(decoder: Any, staged: list[Any]) -> list[Any]:
    """Returns one outcome for each staged part: some are decoded already, the others are decoded as a block."""
    handles = [part for part in staged if isinstance(part, MediaHandle)]
    decoded = iter(decoder.decode_block(handles))
    return [next(decoded) if isinstance(part, MediaHandle) else Decoded(part, "pyav") for part in staged]


MEDIA = Campaign("mutated video and audio", 2_000, prepare, timeout_seconds=60, cases_per_child=400, warm_cases=100)
