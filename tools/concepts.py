"""Draws the concepts of docs/concepts.md: docs/images/concept-NAME.svg, one drawing for each entry of `DRAWINGS`.

python tools/concepts.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH = 680
GREEN, YELLOW, BLUE, GREY, WHITE = "#e3f1ec", "#fdf0d9", "#e1ecf8", "#eef1f4", "#ffffff"
INK, EDGE, QUIET = "#1d2429", "#5b6770", "#4a555d"
FONT = "font-family='Helvetica, Arial, sans-serif'"


class Drawing:
    """An SVG that is written from top to bottom. It has a background of its own, so it can be read on any page."""

    def __init__(self, title: str, height: int) -> None:
        self.lines = [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
            f"height='{height}' role='img'>",
            f"<title>{escape(title)}</title>",
            "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
            f"orient='auto'><path d='M0 0L8 4L0 8z' fill='{EDGE}'/></marker></defs>",
            f"<rect width='{WIDTH}' height='{height}' rx='8' fill='{WHITE}'/>",
        ]

    def box(self, x: float, y: float, width: float, height: float, words: str = "", fill: str = GREEN) -> None:
        """Draws a box with words in its centre; `|` separates lines."""
        self.lines.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' fill='{fill}' stroke='{EDGE}'/>"
        )
        texts = words.split("|") if words else []
        for number, part in enumerate(texts):
            self.text(x + width / 2, y + height / 2 + 4.5 + 16 * (number - (len(texts) - 1) / 2), part)

    def frame(self, x: float, y: float, width: float, height: float, words: str) -> None:
        """Draws a dashed frame with words in its upper left corner."""
        self.lines.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='8' fill='none' stroke='{EDGE}' "
            "stroke-dasharray='5 4'/>"
        )
        self.text(x + 10, y + 18, words, "start", bold=True)

    def text(self, x: float, y: float, words: str, anchor: str = "middle", *, bold: bool = False) -> None:
        """Writes a line of text."""
        weight = " font-weight='bold'" if bold else ""
        self.lines.append(
            f"<text x='{x:g}' y='{y:g}' {FONT} font-size='13' text-anchor='{anchor}' fill='{INK}'{weight}>"
            f"{escape(words)}</text>"
        )

    def arrow(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draws an arrow."""
        self.lines.append(
            f"<path d='M{x0:g} {y0:g}L{x1:g} {y1:g}' stroke='{EDGE}' stroke-width='1.4' fill='none' "
            "marker-end='url(#tip)'/>"
        )

    def line(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draws a dashed line."""
        self.lines.append(f"<path d='M{x0:g} {y0:g}L{x1:g} {y1:g}' stroke='{EDGE}' stroke-dasharray='5 4'/>")

    def brace(self, x0: float, x1: float, y: float, words: str) -> None:
        """Draws a bracket below a range, and words below it."""
        middle = (x0 + x1) / 2
        self.lines.append(
            f"<path d='M{x0:g} {y:g}V{y + 7:g}H{x1:g}V{y:g}M{middle:g} {y + 7:g}V{y + 12:g}' stroke='{EDGE}' "
            "fill='none'/>"
        )
        self.text(middle, y + 28, words)

    def svg(self) -> str:
        """Returns the drawing."""
        return "\n".join([*self.lines, "</svg>", ""])


def sample() -> str:
    """Samples are files of one name in a tar shard; shards and their index are a dataset."""
    drawing = Drawing("A shard is a tar file. Files that share a name are the parts of one sample.", 190)
    drawing.text(20, 34, "shard_000.tar", "start", bold=True)
    for number, (key, fill) in enumerate((("000", GREEN), ("001", YELLOW), ("002", GREEN))):
        for place, part in enumerate(("jpg", "txt")):
            drawing.box(20 + 160 * number + 80 * place, 46, 80, 34, f"{key}.{part}", fill)
    drawing.box(500, 46, 60, 34, "...", GREY)
    drawing.brace(22, 178, 86, "sample, key 000")
    drawing.brace(182, 258, 86, "part jpg")
    drawing.brace(344, 498, 86, "sample, key 002")
    drawing.box(20, 134, 124, 34, "shard_000.tar", GREY)
    drawing.box(152, 134, 124, 34, "shard_001.tar", GREY)
    drawing.box(284, 134, 124, 34, "shard_002.tar", GREY)
    drawing.box(416, 134, 90, 34, ".nv-meta", BLUE)
    drawing.text(522, 156, "a folder: a dataset", "start")
    return drawing.svg()


def plan() -> str:
    """The plan lists which sample comes when, as integers."""
    drawing = Drawing("The plan is a list of rows of integers that everything else reads.", 236)
    drawing.text(20, 30, "plan", "start", bold=True)
    columns = (("row", 52), ("source", 72), ("shard", 64), ("index", 64), ("pass", 56))
    rows = (
        ("0", "captions", "2", "17", "0"),
        ("1", "books", "0", "4", "0"),
        ("2", "captions", "0", "3", "0"),
        ("3", "captions", "1", "40", "0"),
    )
    for level, row in enumerate((tuple(name for name, _ in columns), *rows, ("...",) * 5)):
        x = 20.0
        for value, (_, width) in zip(row, columns, strict=True):
            drawing.box(x, 42 + 30 * level, width, 30, value, BLUE if level == 0 else WHITE)
            x += width
    for number, words in enumerate(
        ("reading: what to fetch next", "states: a row per stream", "energon-dali plan, view", "packs and balance")
    ):
        y = 50 + 46 * number
        drawing.arrow(332, 132, 398, y + 17)
        drawing.box(402, y, 256, 34, words, GREEN)
    return drawing.svg()


def stream() -> str:
    """Streams take turns, and workers run them."""
    drawing = Drawing("Each stream is a sequence of batches. The job takes the streams in turn.", 262)
    drawing.text(20, 32, "the plan deals ranges of samples (slices) to streams", "start", bold=True)
    fills = (GREEN, YELLOW)
    for number, fill in enumerate((0, 1, 0, 1, 1, 0)):
        drawing.box(20 + 106 * number, 44, 100, 30, f"slice {number}", fills[fill])
    drawing.frame(20, 96, 300, 62, "stream 0: shuffled in a window")
    drawing.frame(360, 96, 300, 62, "stream 1: shuffled in a window")
    for number in range(3):
        drawing.box(30 + 96 * number, 122, 88, 28, f"batch {2 * number}", GREEN)
        drawing.box(370 + 96 * number, 122, 88, 28, f"batch {2 * number + 1}", YELLOW)
    drawing.arrow(170, 158, 170, 184)
    drawing.arrow(510, 158, 510, 184)
    drawing.text(20, 206, "delivered in turn", "start", bold=True)
    for number in range(6):
        drawing.box(20 + 106 * number, 216, 100, 30, f"batch {number}", fills[number % 2])
    drawing.text(340, 176, "run by 1 worker, 2 workers or 2 ranks: the same batches")
    return drawing.svg()


def step() -> str:
    """With global batches, a step is a range of units, dealt to ranks and micro-batches."""
    drawing = Drawing("A step is a range of units of the job. It is dealt to ranks and micro-batches.", 250)
    drawing.text(20, 30, "units of the job", "start", bold=True)
    for number in range(12):
        drawing.box(20 + 53 * number, 40, 53, 30, str(number), (GREEN, YELLOW, BLUE)[number // 8])
    drawing.brace(22, 442, 76, "step 0: global_batch_size=8")
    drawing.brace(446, 654, 76, "step 1")
    drawing.arrow(150, 112, 150, 134)
    drawing.arrow(314, 112, 400, 134)
    drawing.frame(20, 136, 270, 100, "on two ranks")
    drawing.frame(310, 136, 350, 100, "on one rank, with micro-batches")
    for rank in range(2):
        drawing.text(70, 180 + 36 * rank, f"rank {rank}")
        drawing.box(110, 162 + 36 * rank, 170, 28, ("0  1  2  3", "4  5  6  7")[rank], GREEN)
    drawing.text(360, 198, "rank 0")
    drawing.box(400, 180, 120, 28, "0  1  2  3", GREEN)
    drawing.box(530, 180, 120, 28, "4  5  6  7", GREEN)
    return drawing.svg()


def worker_border() -> str:
    """What happens in a worker, what crosses the border, and what happens in the process that trains."""
    drawing = Drawing("The worker border with DaliDecoder and with SampleDecoder, and what crosses it.", 344)
    drawing.text(130, 28, "worker process", bold=True)
    drawing.text(340, 28, "crosses", bold=True)
    drawing.text(550, 28, "process that trains", bold=True)
    for top, name, left, crossing, right in (
        (
            40,
            "DaliDecoder",
            ("plan and read bytes", "preencode_sample"),
            "a block:|encoded media in|one buffer, offsets,|fields, state",
            ("decode the block", "encode_sample, batch", "training step"),
        ),
        (
            190,
            "SampleDecoder",
            ("plan and read bytes", "decode (PIL, PyAV)", "all hooks, batch"),
            "a batch:|tensors, state",
            ("receive the batch", "training step"),
        ),
    ):
        drawing.text(20, top + 18, name, "start", bold=True)
        for number, words in enumerate(left):
            drawing.box(20, top + 28 + 36 * number, 220, 30, words, GREEN)
        drawing.box(265, top + 28, 150, 76, crossing, BLUE)
        drawing.arrow(240, top + 66, 263, top + 66)
        drawing.arrow(415, top + 66, 438, top + 66)
        for number, words in enumerate(right):
            drawing.box(440, top + 28 + 36 * number, 220, 30, words, YELLOW)
    drawing.line(340, 34, 340, 66)
    drawing.line(340, 146, 340, 216)
    drawing.line(340, 296, 340, 334)
    return drawing.svg()


def state() -> str:
    """A state is a position: restored anywhere, the next batch is the one that would have come."""
    drawing = Drawing("A state holds positions. After a restore, the next batch is the one that would have come.", 226)
    drawing.text(20, 30, "run 1: two workers", "start", bold=True)
    for number in range(5):
        drawing.box(20 + 92 * number, 40, 86, 30, f"batch {number}", GREEN if number < 3 else GREY)
    drawing.text(490, 60, "killed after batch 4", "start")
    drawing.arrow(292, 72, 292, 98)
    drawing.box(150, 100, 284, 34, "state after batch 2: a row per stream", BLUE)
    drawing.text(448, 122, "JSON, about 1 KB", "start")
    drawing.arrow(292, 136, 292, 176)
    drawing.text(20, 168, "run 2: one worker", "start", bold=True)
    for number in range(3, 7):
        drawing.box(20 + 92 * number, 180, 86, 30, f"batch {number}", GREEN)
    return drawing.svg()


DRAWINGS: dict[str, Callable[[], str]] = {
    "sample": sample,
    "plan": plan,
    "stream": stream,
    "step": step,
    "worker-border": worker_border,
    "state": state,
}
"""What draws docs/images/concept-NAME.svg, by name."""


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / f"concept-{name}.svg").write_text(draw(), encoding="utf-8")
