"""Draws the hooks of a task encoder in order, and the process in which each runs.

python tools/hooks.py                        # writes docs/images/hooks.svg
"""

from __future__ import annotations

from pathlib import Path

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "hooks.svg"
DECODE = "decode"
STEPS = (
    "read",
    "cook_crude_sample",
    "preencode_sample",
    DECODE,
    "encode_sample",
    "select_samples_to_pack",
    "postencode_sample",
    "cut_sample",
    "pack_selected_samples",
    "batch_group_criterion",
    "batch",
    "encode_batch",
)
"""The steps of a sample, in order: hooks, and what the pipeline does between them."""
WHOLE = (*STEPS[:6], *STEPS[7:])
"""With `encode_sample` alone."""
SPLIT = (*STEPS[:3], "select_samples_to_pack", DECODE, "postencode_sample", *STEPS[7:])
"""With `preencode_sample` and `postencode_sample`: packing chooses among encoded samples."""

COLUMNS = (
    ("DaliDecoder", "encode_sample", tuple(step for step in WHOLE if step != "preencode_sample"), DECODE),
    ("DaliDecoder", "preencode + postencode", SPLIT, "select_samples_to_pack"),
    ("SampleDecoder", "either form", ("read", DECODE, "cook_crude_sample", *STEPS[2:3], *STEPS[4:]), None),
)
"""(decoder, form of the encoder, steps, first step in the rank; None where the whole column runs in a worker)."""

BOX_WIDTH, BOX_HEIGHT, GAP, ROW, MARGIN, TOP = 214, 26, 40, 36, 16, 58
WORKER, RANK, INK, EDGE = "#e3f1ec", "#fdf0d9", "#1d2429", "#5b6770"
FONT = "font-family='Helvetica, Arial, sans-serif'"


def draw() -> str:
    """Returns the diagram as SVG."""
    width = 2 * MARGIN + len(COLUMNS) * (BOX_WIDTH + GAP) - GAP
    height = TOP + ROW * max(len(column[2]) + (column[3] is not None) for column in COLUMNS) + 52
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>",
        "<title>The hooks of a task encoder in their order, and the process in which each runs</title>",
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
    ]
    for number, (decoder, form, steps, border) in enumerate(COLUMNS):
        left = MARGIN + number * (BOX_WIDTH + GAP)
        lines.append(text(left + BOX_WIDTH / 2, 24, decoder, "font-size='15' font-weight='bold'"))
        lines.append(text(left + BOX_WIDTH / 2, 42, form, "font-size='12'"))
        y, fill = TOP, WORKER
        for step in steps:
            if step == border:
                middle = y + BOX_HEIGHT / 2
                lines.append(
                    f"<path d='M{left - 12} {middle}H{left + BOX_WIDTH + 12}' stroke='{EDGE}' stroke-dasharray='5 4'/>"
                )
                lines.append(
                    f"<rect x='{left + 50}' y='{middle - 9}' width='{BOX_WIDTH - 100}' height='18' fill='#ffffff'/>"
                )
                lines.append(text(left + BOX_WIDTH / 2, middle + 4, "worker border", "font-size='12'"))
                y, fill = y + ROW, RANK
            hook = step not in ("read", DECODE)
            style = f"fill='{fill}' stroke='{EDGE}'" if hook else f"fill='{EDGE}' stroke='{EDGE}'"
            lines.append(f"<rect x='{left}' y='{y}' width='{BOX_WIDTH}' height='{BOX_HEIGHT}' rx='5' {style}/>")
            lines.append(text(left + BOX_WIDTH / 2, y + 17, step, "font-size='12.5'", INK if hook else "#ffffff"))
            y += ROW
    y = height - 34
    for x, fill, label in (
        (MARGIN, WORKER, "in a worker"),
        (MARGIN + 130, RANK, "in the rank"),
        (MARGIN + 260, EDGE, "not a hook"),
    ):
        lines.append(f"<rect x='{x}' y='{y}' width='18' height='18' rx='4' fill='{fill}' stroke='{EDGE}'/>")
        lines.append(f"<text x='{x + 26}' y='{y + 13}' {FONT} font-size='12' fill='{INK}'>{label}</text>")
    return "\n".join([*lines, "</svg>", ""])


def text(x: float, y: float, words: str, style: str, fill: str = INK) -> str:
    """Returns a text centred on x."""
    return f"<text x='{x:g}' y='{y:g}' {FONT} {style} text-anchor='middle' fill='{fill}'>{words}</text>"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
