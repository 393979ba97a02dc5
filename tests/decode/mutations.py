"""Breaks files at random, mostly in their headers, identically on every machine."""

from __future__ import annotations

from random import Random

_HEADER_BYTES = (16, 40, 160, 1_000_000)
_TELLING_BYTES = (0, 1, 2, 8, 16, 127, 128, 255)


def mutate(data: bytes, random: Random) -> bytes:
    """Returns a file truncated, or with some bits, bytes or runs changed, dropped, added or copied."""
    kind = random.random()
    if kind < 0.2:
        return data[: random.randrange(min(len(data), random.choice((40, 640, 1_000_000))))]
    content = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        if not content:
            break
        position = random.randrange(min(len(content), random.choice(_HEADER_BYTES)))
        change = random.random()
        if change < 0.35:
            content[position] ^= 1 << random.randrange(8)
        elif change < 0.55:
            content[position] = random.choice(_TELLING_BYTES)
        elif change < 0.7:
            content[position] = random.randrange(256)
        elif change < 0.8:
            del content[position : position + random.choice((1, 2, 4, 8, 20))]
        elif change < 0.9:
            content[position:position] = random.randbytes(random.choice((1, 2, 4)))
        else:
            start = random.randrange(min(len(content), 160))
            content[position : position + 4] = content[start : start + 4]
    return bytes(content)
