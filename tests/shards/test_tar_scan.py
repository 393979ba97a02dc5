"""The scanner finds what tarfile finds, and rejects damage that tarfile takes for the end."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.errors import ShardError
from energon_dali.shards.index.tar_scan import TarEnd, TarMember, group_members, scan_tar, split_member_name


def scan(data: bytes) -> list[TarMember | TarEnd]:
    return list(scan_tar(lambda offset, size: data[offset : offset + size], len(data), "a.tar"))


def reference(data: bytes) -> list[tuple[str, int, int, int]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        found = [(m.name, m.offset, m.offset_data, m.size) for m in tar if m.isreg()]
        return [*found, ("end", tar.offset, 0, 0)]


def plain(members: list[TarMember | TarEnd]) -> list[tuple[str, int, int, int]]:
    return [("end", m.offset, 0, 0) if isinstance(m, TarEnd) else tuple(m) for m in members]  # type: ignore[misc]


def build(files: list[tuple[str, int, bytes]], form: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, size, kind in files:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "elsewhere" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            member.size = size if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return out.getvalue()


NAMES = st.text(st.sampled_from("abcé漢_./ 0"), min_size=1, max_size=90).map(lambda text: text.strip("/ ") or "n")
LONG = st.integers(90, 400).map(lambda size: "d/" * (size // 4) + "n" * (size // 2))
KINDS = st.sampled_from(
    [tarfile.REGTYPE] * 4 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
FILES = st.lists(st.tuples(NAMES | LONG, st.sampled_from([0, 1, 511, 512, 513, 3000]), KINDS), max_size=12)


@settings(max_examples=150)
@given(FILES, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_sees_what_tarfile_sees(files: list[tuple[str, int, bytes]], form: int) -> None:
    data = build(files, form)
    assert plain(scan(data)) == reference(data)


@settings(max_examples=60)
@given(st.lists(st.tuples(NAMES, st.sampled_from([0, 5, 600]), KINDS), max_size=8))
def test_ustar_prefixes(files: list[tuple[str, int, bytes]]) -> None:
    data = build([(f"{'p' * 80}/{name[:40]}", size, kind) for name, size, kind in files], tarfile.USTAR_FORMAT)
    assert plain(scan(data)) == reference(data)


def test_size_in_a_pax_header_wins() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.bin")
        member.size = 700
        member.pax_headers = {"size": "700", "comment": "päx"}
        tar.addfile(member, io.BytesIO(bytes(700)))
    assert plain(scan(out.getvalue())) == reference(out.getvalue())


def test_base_256_sizes_are_understood() -> None:
    member = tarfile.TarInfo("big.bin")
    member.size = 9 << 30
    header = member.tobuf(tarfile.GNU_FORMAT)
    size = 512 + (9 << 30)
    (found, end) = list(scan_tar(lambda o, n: header[o : o + n] if o == 0 else b"", size, "a.tar"))
    assert found == TarMember("big.bin", 0, 512, 9 << 30)
    assert end == TarEnd(size)


GOOD = build([("a.jpg", 700, tarfile.REGTYPE), ("a.txt", 10, tarfile.REGTYPE), ("b.jpg", 600, tarfile.REGTYPE)], 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (GOOD[:600], "was cut off"),
        (GOOD[:1900], "ends in the middle of a header"),
        (b"not a tar at all" * 64, "is not a tar file"),
        (gzip.compress(GOOD), "compressed with gzip"),
        (GOOD[:1536] + b"\xff" + GOOD[1537:], "damaged header at byte 1536"),
        (GOOD + GOOD, "the tar ends here, but the file goes on"),
        (GOOD[:2560] + bytes(1024) + GOOD[2560:], "the tar ends here, but the file goes on"),
        (GOOD[:2560] + bytes(2 << 20), "the tar ends here, but the file goes on for 2,097,152 bytes"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ShardError, match=message) as caught:
        scan(data)
    assert caught.value.shard == "a.tar"


@settings(max_examples=150)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_flipped_byte_gives_members_or_an_error(place: int, change: int) -> None:
    data = bytearray(GOOD)
    data[place] ^= change
    try:
        found = scan(bytes(data))
    except ShardError:
        return
    assert all(isinstance(m, TarEnd) or m.content_offset + m.size <= len(data) for m in found)


def pax_tar(name: str, size: str) -> bytes:
    """Returns a tar whose only member has a size in its extended header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(name)
        member.size = 700
        member.pax_headers = {"size": size}
        tar.addfile(member, io.BytesIO(bytes(700)))
    return out.getvalue()


def header_tar(kind: bytes, size: bytes) -> bytes:
    """Returns a tar whose only header has these bytes as its size field, and a correct checksum."""
    member = tarfile.TarInfo("a.jpg")
    member.type = kind
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(2048)


@pytest.mark.parametrize(
    "data",
    [
        *(
            pytest.param(pax_tar(name, size), id=f"pax {name} {size[:12]}")
            for name in ("a", "a.jpg")
            for size in (
                "-1536",
                "-512",
                "-0",
                "+700",
                "7_00",
                " 700",
                "0x10",
                "",
                "9" * 25,
                "9" * 5000,
                "1" + "0" * 18,
                "699",  # readers compare headers, which say 700
            )
        ),
        *(
            pytest.param(header_tar(kind, size), id=f"header {kind!r} {size!r}")
            for kind in (b"0", b"L", b"K", b"x", b"g", b"V")
            for size in (
                b"-0000001000\0",
                b"77777777777\0",
                b"\xff" + bytes(11),
                b"\xff" * 12,
                b"\x80" + b"\xff" * 11,
                b"9" * 12,
                b"-1         \0",
            )
        ),
    ],
)
def test_impossible_sizes_are_refused_and_the_scan_ends(data: bytes) -> None:
    reads = 0

    def read_at(offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 100, "the scan goes in circles"
        assert offset >= 0
        assert 0 <= size <= 1 << 20
        return data[offset : offset + size]

    with pytest.raises(ShardError):
        list(scan_tar(read_at, len(data), "a.tar"))


_WEBDATASET_NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)", re.DOTALL)


@settings(max_examples=500)
@given(st.text("a./", max_size=12) | st.text(st.sampled_from("ab./\n"), max_size=20))
def test_names_are_cut_as_webdataset_cuts_them(name: str) -> None:
    match = _WEBDATASET_NAME.fullmatch(name)
    assert split_member_name(name) == (None if match is None else (match[1], match[2]))


def test_a_long_name_of_slashes_is_cut_at_once() -> None:
    # The expression above would take hours.
    assert split_member_name("/" * (1 << 20)) is None


def test_a_name_is_cut_at_its_first_dot() -> None:
    assert split_member_name("a/b.detail.json") == ("a/b", "detail.json")
    assert split_member_name("a.b/c.jpg") == ("a.b/c", "jpg")
    assert split_member_name("no_dot") is None
    assert split_member_name("__meta__/x.jpg") is None
    assert split_member_name(".hidden") is None


def test_parts_of_one_key_in_a_row_are_a_sample(tmp_path: Path) -> None:
    data = build([(name, 1, tarfile.REGTYPE) for name in ("a.x", "a.y", "b.x", "a.x")], tarfile.GNU_FORMAT)
    parts = [part for part in group_members(scan(data)) if not isinstance(part, TarEnd)]
    assert [(part.key, part.part, part.new_sample) for part in parts] == [
        ("a", "x", True),
        ("a", "y", False),
        ("b", "x", True),
        ("a", "x", True),
    ]
