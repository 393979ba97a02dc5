"""Draws the rooms of the package and the arrows between them, from its imports.

    python tools/rooms.py                        # writes docs/images/rooms.svg

A room is a folder of `energon_dali` (and `kernels`). An arrow means that a room imports another one, at import
time or lazily. Arrows that follow from others are left out: if `assembly` imports `datasets` and `datasets` imports
`shards`, no arrow is drawn from `assembly` to `shards`. A room is drawn below all rooms that import it.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE / "tools"))

from house import import_graph  # noqa: E402 (the scripts in this folder are not a package)

PICTURE = HERE / "docs" / "images" / "rooms.svg"
BASE = ("samples", "errors")
"""Rooms that nearly every room imports. They are drawn as the ground below all others, with the top-level modules."""
ROOMS = {
    "cli": "the energon-dali command",
    "tasks": "trainable tasks",
    "diagnosis": "doctor",
    "view": "the local web page",
    "integrations": "other trainers",
    "compat": "Energon's module paths",
    "loader": "runs a tree: workers, state",
    "assembly": "from a path to a tree",
    "datasets": "what a tree is made of",
    "task_encoder": "hooks, cookers, packing",
    "metadataset": "blends and joins in YAML",
    "pack": "from images to shards",
    "decode": "PIL, PyAV and DALI",
    "cache": "auxiliary stores",
    "av": "video and audio by PyAV",
    "shards": "tar files, indices, storage",
    "plan": "the order, as integers",
    "kernels": "Triton, with references",
}
"""What is in each room, in a few words."""

BOX_WIDTH, BOX_HEIGHT, PASSAGE_WIDTH, GAP, LAYER_HEIGHT, MARGIN = 196, 46, 12, 30, 84, 16
FONT = "font-family='Helvetica, Arial, sans-serif'"


def rooms_and_arrows(root: Path) -> dict[str, set[str]]:
    """Returns the rooms that each room imports."""
    arrows: dict[str, set[str]] = {}
    for module, imported in import_graph(root, lazy=True).items():
        here = room_of(root, module)
        if here is not None:
            arrows.setdefault(here, set()).update(
                there for name in imported if (there := room_of(root, name)) is not None and there != here
            )
    return arrows


def room_of(root: Path, module: str) -> str | None:
    """Returns the room of a module, or None for the ground."""
    parts = module.split(".")
    if len(parts) < 2 or parts[1] in BASE:
        return None
    is_room = parts[1] == "kernels" or (root / "energon_dali" / parts[1]).is_dir()
    return parts[1] if is_room else None


def essential(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Returns the arrows that do not follow from others.

    Raises:
        ValueError: Rooms import each other in a cycle.
    """
    below: dict[str, set[str]] = {}

    def reached(room: str, path: tuple[str, ...]) -> set[str]:
        if room in path:
            raise ValueError(f"Rooms import each other: {' -> '.join([*path, room])}. See tests/test_house.py.")
        if room not in below:
            below[room] = {far for near in arrows[room] for far in {near} | reached(near, (*path, room))}
        return below[room]

    return {
        room: {there for there in imported if not any(there in reached(other, (room,)) for other in imported)}
        for room, imported in arrows.items()
    }


def layers(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns the rooms from top to bottom, each right below the lowest room that imports it."""
    depth: dict[str, int] = {}

    def depth_of(room: str) -> int:
        if room not in depth:
            depth[room] = max((depth_of(other) + 1 for other in arrows if room in arrows[other]), default=0)
        return depth[room]

    rows: list[list[str]] = [[] for _ in range(max(map(depth_of, arrows)) + 1)]
    for room in sorted(arrows):
        rows[depth[room]].append(room)
    return rows


def ways(rows: list[list[str]], arrows: dict[str, set[str]]) -> dict[tuple[str, str], list[str]]:
    """Returns what each arrow passes, row by row. Between two rooms it gets its own slots, added to `rows`."""
    depth = {room: level for level, row in enumerate(rows) for room in row}
    found = {}
    for room, imported in sorted(arrows.items()):
        for there in sorted(imported):
            between = range(depth[room] + 1, depth[there])
            places = [f"{room}>{there}" for _ in between]
            for level, place in zip(between, places, strict=True):
                rows[level].append(place)
            found[room, there] = [room, *places, there]
    return found


def centres(rows: list[list[str]], passed: list[list[str]]) -> tuple[list[dict[str, float]], float]:
    """Returns the horizontal centres of the items in each row, and the width of the widest row.

    Rows are sorted so that items are close to what their arrows point to, and arrows rarely cross.
    """
    links: dict[tuple[int, str], set[tuple[int, str]]] = {
        (n, name): set() for n, row in enumerate(rows) for name in row
    }
    depth = {name: level for level, row in enumerate(rows) for name in row if ">" not in name}
    for names in passed:
        for step, (upper, lower) in enumerate(pairwise(names), start=depth[names[0]]):
            links[step, upper].add((step + 1, lower))
            links[step + 1, lower].add((step, upper))

    def place(row: list[str]) -> dict[str, float]:
        widths = [PASSAGE_WIDTH if ">" in name else BOX_WIDTH for name in row]
        left = -(sum(widths) + GAP * (len(row) - 1)) / 2
        starts = [left + sum(widths[:index]) + GAP * index for index in range(len(row))]
        return {name: start + width / 2 for name, start, width in zip(row, starts, widths, strict=True)}

    placed = [place(row) for row in rows]
    for _ in range(12):
        for level, row in enumerate(rows):
            pull = {
                name: sum(placed[other][there] for other, there in links[level, name]) / max(1, len(links[level, name]))
                for name in row
            }
            row.sort(key=lambda name, pull=pull: (pull[name], name))  # type: ignore[misc]
            placed[level] = place(row)
    edge = max(abs(x) + (PASSAGE_WIDTH if ">" in name else BOX_WIDTH) / 2 for row in placed for name, x in row.items())
    return [{name: x + MARGIN + edge for name, x in row.items()} for row in placed], 2 * edge


def draw(root: Path = HERE) -> str:
    """Returns the diagram as SVG; the same imports give the same text.

    Raises:
        ValueError: A room has no description in `ROOMS`, or rooms import each other.
    """
    arrows = rooms_and_arrows(root)
    unknown = sorted(set(arrows) - set(ROOMS))
    if unknown:
        raise ValueError(f"Say in a few words what is in {', '.join(unknown)}: ROOMS in tools/rooms.py.")
    arrows = essential(arrows)
    rows = layers(arrows)
    passages = ways(rows, arrows)
    centre, width = centres(rows, list(passages.values()))
    depth = {room: level for level, row in enumerate(rows) for room in row if ">" not in room}
    bottom = MARGIN + len(rows) * LAYER_HEIGHT - (LAYER_HEIGHT - BOX_HEIGHT) + 22
    total_width, total_height = width + 2 * MARGIN, bottom + BOX_HEIGHT + MARGIN
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {total_width:g} {total_height:g}' "
        f"width='{total_width:g}' height='{total_height:g}'>",
        "<title>The rooms of energon_dali. An arrow says: imports.</title>",
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        "<path d='M0 0L8 4L0 8z' fill='#5b6770'/></marker></defs>",
        f"<rect width='{total_width:g}' height='{total_height:g}' fill='#ffffff'/>",
    ]
    for (room, _), names in passages.items():
        path, level = "", depth[room]
        for upper, lower in pairwise(names):
            x0, x1 = centre[level][upper], centre[level + 1][lower]
            start = MARGIN + level * LAYER_HEIGHT + BOX_HEIGHT
            end, middle = start + LAYER_HEIGHT - BOX_HEIGHT, start + (LAYER_HEIGHT - BOX_HEIGHT) / 2
            path += f"{'L' if path else 'M'}{x0:.0f} {start:.0f}C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} "
            path += f"{x1:.0f} {end - (lower == names[-1]):.0f}"
            level += 1
        lines.append(f"<path d='{path}' fill='none' stroke='#5b6770' stroke-width='1.3' marker-end='url(#tip)'/>")
    for room in sorted(arrows):
        x, y = centre[depth[room]][room], MARGIN + depth[room] * LAYER_HEIGHT + BOX_HEIGHT / 2
        lines += box(x, y, BOX_WIDTH, room, ROOMS[room], "#e3f1ec", "#2a7f62")
    ground = "samples, errors, worker_config, error_handlers"
    lines += box(
        total_width / 2, bottom + BOX_HEIGHT / 2, width, ground, "imported by nearly every room", "#eef1f4", "#9aa5b1"
    )
    return "\n".join([*lines, "</svg>", ""])


def box(x: float, y: float, width: float, name: str, text: str, fill: str, edge: str) -> list[str]:
    """Returns the lines of one box around (x, y)."""
    return [
        f"<rect x='{x - width / 2:.0f}' y='{y - BOX_HEIGHT / 2:.0f}' width='{width:.0f}' height='{BOX_HEIGHT}' rx='6' "
        f"fill='{fill}' stroke='{edge}'/>",
        f"<text x='{x:.0f}' y='{y - 4:.0f}' {FONT} font-size='14' font-weight='bold' text-anchor='middle' "
        f"fill='#1d2429'>{name}</text>",
        f"<text x='{x:.0f}' y='{y + 14:.0f}' {FONT} font-size='12' text-anchor='middle' fill='#4a555d'>{text}</text>",
    ]


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
