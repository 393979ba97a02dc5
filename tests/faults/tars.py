"""Mutated tars: prepared, and read with an index from before the mutation or with `.tar.idx` alone."""

from __future__ import annotations

import io
import logging
import shutil
import tarfile
from pathlib import Path
from random import Random

from energon_dali.shards import RawSample, ShardReader, WebdatasetFolder, prepare_dataset
from tests.faults.campaign import Campaign, Case, Lost, Outcome, refused_by_us
from tests.shards.tars import write_tar

BLOCK = 512
NUMBERS = (b"-1536", b"0", b"1", b"511", b"4096", b"999999999999", b"9" * 30, b"1e9", b"", b"\xff" * 8)


def good_tars() -> dict[str, bytes]:
    """Returns small tars of every form, by name."""
    files = [(f"k{n:02d}.{part}", bytes([65 + n]) * (90 + 333 * n)) for n in range(8) for part in ("txt", "json")]
    long = [(f"{'d' * 90}/{'e' * 90}/{name}", content) for name, content in files[:8]]
    found = {}
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path()
    for name, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        for kind, members in (("short", files), ("long", long)):
            path = folder / f"energon-dali-fault-{name}-{kind}.tar"
            found[f"{name}-{kind}"] = write_tar(path, members, form).read_bytes()
            path.unlink()
    found["pax-sizes"] = pax_sizes()
    return found


def pax_sizes() -> bytes:
    """Returns a tar whose PAX headers contain the sizes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(6):
            member = tarfile.TarInfo(f"k{number}.txt")
            member.size = 700
            member.pax_headers = {"size": "700", "comment": "c" * 40}
            tar.addfile(member, io.BytesIO(bytes([70 + number]) * 700))
    return out.getvalue()


def mutate_tar(data: bytes, random: Random) -> bytes:
    """Returns a tar that is cut off, or has changed headers (with right checksums half of the time) or PAX records."""
    content = bytearray(data)
    kind = random.random()
    if kind < 0.15:
        return bytes(content[: random.randrange(len(content))])
    if kind < 0.3:
        at = data.find(b" size=")
        if at >= 0:
            return data.replace(b" size=700", b" size=" + random.choice(NUMBERS)[:3].ljust(3))
    for _ in range(random.choice((1, 1, 2, 5))):
        start = BLOCK * random.randrange(max(1, len(content) // BLOCK))
        change = random.random()
        if change < 0.4:  # a field of a header, mostly size or type
            at, size = random.choice(((124, 12), (124, 12), (156, 1), (0, 100), (345, 155), (148, 8), (257, 6)))
            values = (
                random.choice(NUMBERS),
                random.randbytes(size),
                b"\x80" + random.randbytes(11),
                b"%011o" % random.randrange(1 << 33),
                bytes([random.choice(b"0123456789LKxgSV\0")]),
            )
            value = random.choice(values)
            content[start + at : start + at + size] = value[:size].ljust(size, b"\0")
        elif change < 0.6:
            del content[start : start + BLOCK * random.choice((1, 1, 2))]
        elif change < 0.7:
            content[start:start] = bytes(BLOCK * random.choice((1, 2, 3)))
        elif change < 0.85:
            other = BLOCK * random.randrange(max(1, len(content) // BLOCK))
            content[start : start + BLOCK] = content[other : other + BLOCK]
        else:
            at = random.randrange(len(content)) if content else 0
            content[at : at + 1] = random.randbytes(1)
        if random.random() < 0.5 and start + BLOCK <= len(content):
            _mend_checksum(content, start)
    return bytes(content)


def _mend_checksum(content: bytearray, start: int) -> None:
    header = content[start : start + BLOCK]
    header[148:156] = b" " * 8
    content[start + 148 : start + 156] = b"%06o\0 " % sum(header)


def read_all(folder: Path) -> dict[str, dict[str, bytes] | str]:
    """Returns the parts of each sample by key, or the text of its error by number."""
    dataset = WebdatasetFolder(folder)
    reader = ShardReader(dataset)
    found: dict[str, dict[str, bytes] | str] = {}
    try:
        for shard, count in enumerate(dataset.shard_counts):
            for number, sample in enumerate(reader.read([shard] * count, list(range(count)))):
                if isinstance(sample, RawSample):
                    found[sample.key] = {name: bytes(content) for name, content in sample.parts.items()}
                else:
                    found[f"#{shard}/{number}"] = str(sample)
    finally:
        reader.close()
    return found


def prepare(folder: Path) -> Case:
    """Creates and prepares the good tars; the case mutates one next to a good one."""
    logging.disable(logging.WARNING)  # messages about damaged files are tested elsewhere
    tars = good_tars()
    whole: dict[str, dict[str, dict[str, bytes] | str]] = {}
    for name, data in tars.items():
        (folder / name).mkdir()
        (folder / name / "a.tar").write_bytes(data)
        write_tar(folder / name / "b.tar", {f"z{n}.txt": b"neighbour" * n for n in range(4)})
        prepare_dataset(folder / name)
        whole[name] = read_all(folder / name)
    names = list(tars)

    def case(number: int, scratch: Path) -> Outcome:
        random = Random(number)
        name = names[number % len(names)]
        broken = mutate_tar(tars[name], random)
        refused = 0
        # With the index from before: samples whose bytes did not change are read unchanged.
        shutil.copytree(folder / name, scratch / "old")
        (scratch / "old" / "a.tar").write_bytes(broken)
        if number % 2:
            for extra in ("extents.bin", "index.sqlite"):
                (scratch / "old" / ".nv-meta" / extra).unlink()
        found: dict[str, dict[str, bytes] | str] = {}
        refused += refused_by_us(lambda: found.update(read_all(scratch / "old")), f"{name}, read") is not None
        check_neighbours(found, whole[name], f"{name}, old index", must_arrive=not refused)
        if number % 2 == 0 and len(broken) == len(tars[name]):
            check_untouched(found, whole[name], tars[name], broken, name)
        # Prepared after the mutation: it fails as a whole, or reading raises no foreign error.
        (scratch / "new").mkdir()
        (scratch / "new" / "a.tar").write_bytes(broken)
        shutil.copy(folder / name / "b.tar", scratch / "new" / "b.tar")
        error = refused_by_us(lambda: prepare_dataset(scratch / "new"), f"{name}, prepare")
        if error is None:
            found = {}
            refused += refused_by_us(lambda: found.update(read_all(scratch / "new")), f"{name}, read again") is not None
            check_neighbours(found, whole[name], f"{name}, new index", must_arrive=not refused)
            if any(key.startswith("#") for key in found):
                raise Lost(f"{name}: a sample that was just indexed cannot be read: {found}")
        elif list((scratch / "new").rglob("*.idx")) or (scratch / "new" / ".nv-meta").exists():
            raise Lost(f"{name}: a refused prepare wrote {sorted((scratch / 'new').rglob('*'))}")
        return Outcome(survived=int(not refused and error is None), refused=int(bool(refused or error)))

    return case


def check_neighbours(
    found: dict[str, dict[str, bytes] | str], whole: dict[str, dict[str, bytes] | str], what: str, *, must_arrive: bool
) -> None:
    """Raises Lost unless the samples of the good shard are unchanged."""
    for key in (key for key in whole if key.startswith("z")):
        if found.get(key, whole[key]) != whole[key] or (must_arrive and key not in found):
            raise Lost(f"{what}: {key} of the good shard is {str(found.get(key))[:80]}")


def check_untouched(
    found: dict[str, dict[str, bytes] | str],
    whole: dict[str, dict[str, bytes] | str],
    good: bytes,
    broken: bytes,
    what: str,
) -> None:
    """Raises Lost unless the samples whose headers and contents did not change are unchanged."""
    touched = set()
    with tarfile.open(fileobj=io.BytesIO(good)) as tar:
        for member in tar:
            end = member.offset_data + member.size
            if good[member.offset : end] != broken[member.offset : end]:
                touched.add(member.name.rpartition("/")[2].partition(".")[0])
    for key, parts in whole.items():
        if key.rpartition("/")[2] not in touched and found.get(key) != parts:
            raise Lost(f"{what}: {key}, which did not change, is {str(found.get(key))[:80]}")


TARS = Campaign("mutated tars", 5_000, prepare)
