"""Writes the tables of docs/reference/: options with type, default, unit and cost; fields; shapes and dtypes.

    python tools/reference_tables.py                     # writes all tables again: a minute
    python tools/reference_tables.py options hooks       # those of some kinds

A page holds its prose, and a pair of comments around each table: `<!-- table: NAME ARGUMENTS -->` and
`<!-- end of table -->`. Types and defaults are those of signatures, meanings and costs those of docstrings: the part of
an option's text after "Cost:" is its cost. Shapes and dtypes are those of values that are made here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import tempfile
import textwrap
import types
import typing
from collections.abc import Callable, Container, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the package of this checkout, and the recipes of its tests

PAGES = ROOT / "docs" / "reference"
BLOCK = re.compile(r"(<!-- table: (\S+) ?([^\n]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
NONE = "-"
MOST_UNBROKEN = 30
"""Characters of code that stay on one line."""
MOST_KINDS = 8
"""An option of more names than this has a table of its own."""

UNITS = {
    "correct_choice_idx": "",
    "label": "",
    "matched_text_indices": "",
    "FileStoreCachePool.num_workers": "files",
    "ratio": "units of width / height",
    "scale": "shares of the area",
    "mean": "units of 0 to 1",
    "std": "units of 0 to 1",
    "p": "",
    "size": "pixels",
    "at": "seconds",
    "attempts": "attempts per request",
    "batch_size": "samples",
    "channels": "channels",
    "checkpoint_every_min_n_samples": "samples",
    "frames_per_clip": "frames",
    "gc_collect_every_n_steps": "steps",
    "global_batch_size": "samples, or packs",
    "hop_length": "audio samples",
    "hw_decoder_load": "",
    "hybrid_huffman_threshold": "pixels",
    "image_decode_device": "",
    "video_decode_device": "",
    "device_memory_padding": "bytes",
    "host_memory_padding": "bytes",
    "limit": "batches per rank",
    "max_cache_count": "files",
    "max_cache_size_gbytes": "GiB",
    "max_length": "tokens, or another measure",
    "max_samples": "samples",
    "multiple": "tokens, or another measure",
    "window": "samples",
    "max_audio_samples": "audio samples per channel",
    "max_batch_size": "images",
    "max_frames": "frames",
    "max_packets": "packets",
    "max_samples_per_sequence": "samples",
    "n_checkpoints": "states",
    "n_fft": "audio samples",
    "num_clips": "clips",
    "num_mels": "bands",
    "num_streams": "streams",
    "num_threads": "threads",
    "num_workers": "processes",
    "packing_buffer_size": "samples",
    "packing_first_buffer_size": "samples",
    "padding_value": "amplitude",
    "parallel_shard_iters": "slices",
    "prefetch_factor": "blocks and batches",
    "rank": "",
    "requests_in_flight": "requests",
    "runs_in_flight": "runs",
    "sample_rate": "hertz",
    "seed_offset": "",
    "shuffle_buffer_size": "samples per stream",
    "shuffle_over_epochs_multiplier": "epochs",
    "stride": "frames",
    "virtual_epoch_length": "batches per rank",
    "worker_log_level": "",
    "world_size": "ranks",
}
"""Units of numbers whose names do not say them; "" for those that have none."""
SUFFIXES = {
    "_bytes": "bytes",
    "_seconds": "seconds",
    "_sec": "seconds",
    "_pixels": "pixels",
    "_width_hint": "pixels",
    "_height_hint": "pixels",
}
BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


@dataclass(frozen=True)
class Option:
    """One argument of a function, or one field of a dataclass."""

    owner: str
    """Name of the function or class."""
    name: str
    kind: tuple[str, ...]
    """What it may be, such as ("int", "None")."""
    default: Any
    """MISSING if it must be given."""
    text: str
    """What it means, from the docstring."""
    cost: str
    """What it costs; "" if the docstring says nothing."""

    @property
    def unit(self) -> str:
        """Unit of its value; "" for values that are not numbers.

        Raises:
            SystemExit: It is a number, and nothing says of what.
        """
        if not any(re.search(r"\b(int|float)\b", one) for one in self.kind):
            return ""
        for suffix, unit in SUFFIXES.items():
            if self.name.endswith(suffix):
                return unit
        for name in (f"{self.owner}.{self.name}", self.name):
            if name in UNITS:
                return UNITS[name]
        raise SystemExit(f"{self.owner}.{self.name} is a number: say its unit in UNITS of tools/reference_tables.py.")


# --- reading signatures and docstrings ------------------------------------------------------------------------------


def find(path: str) -> Any:
    """Returns the object with a dotted name, such as "energon_dali.get_loader" or "energon_dali.decode.spec.X"."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def options_of(thing: Any, wanted: Callable[[str], bool] = bool) -> list[Option]:
    """Returns the options of a function, a dataclass, or a class with `__init__`, in their order.

    Args:
        thing: The function or class.
        wanted: Chooses options by their names.

    Raises:
        SystemExit: The docstring does not describe one.
    """
    if is_dataclass(thing):
        texts = {**argument_texts(thing), **attribute_texts(thing)}
        given = [
            (field.name, annotation_of(thing, field.name), _default_of(field))
            for field in fields(thing)
            if field.init and field.name not in BASE_FIELDS
        ]
    else:
        texts = argument_texts(thing)
        function = thing.__init__ if isinstance(thing, type) else thing
        given = [
            (one.name, one.annotation, MISSING if one.default is one.empty else one.default)
            for one in inspect.signature(function).parameters.values()
            if one.name != "self" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
    made = []
    for name, annotation, default in given:
        if not wanted(name):
            continue
        if name not in texts:
            raise SystemExit(f"The docstring of {thing.__qualname__} does not describe {name}.")
        text, _, cost = _resolved(name, texts[name]).partition("Cost:")
        kind = tuple(dict.fromkeys(alternatives(annotation, sys.modules[thing.__module__])))
        made.append(Option(thing.__name__, name, kind, default, text.strip(), cost.strip()))
    return made


def _default_of(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def annotation_of(thing: type, name: str) -> Any:
    """Returns the annotation of a field: that of `__init__`, where a class writes one down, else that of the field."""
    for node in _class_body(thing):
        if isinstance(node, ast.If):  # if TYPE_CHECKING: def __init__
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    found = [one.annotation for one in inner.args.kwonlyargs if one.arg == name and one.annotation]
                    return ast.unparse(found[0])
    return next(own[name] for own in map(inspect.get_annotations, thing.__mro__) if name in own)


@cache
def _class_body(thing: type) -> list[ast.stmt]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(tree, ast.ClassDef)
    return tree.body


def attribute_texts(thing: type) -> dict[str, str]:
    """Returns the docstrings below the fields of a dataclass, those of its base classes included."""
    texts: dict[str, str] = {}
    for base in reversed(thing.__mro__):
        if not is_dataclass(base):
            continue
        body = _class_body(base)
        for field, after in pairwise(body):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value).split())
    return texts


def argument_texts(thing: Any) -> dict[str, str]:
    """Returns what the section "Args:" of a docstring says of each argument."""
    documented = (inspect.getdoc(thing) or "").split("\nArgs:\n")
    if len(documented) == 1:
        return {}
    texts: dict[str, str] = {}
    name = ""
    for line in documented[1].splitlines():
        if line and not line.startswith(" "):
            break
        start = re.match(r" {4}(\*{0,2}\w+): (.*)", line)
        if start:
            name = start[1]
            texts[name] = start[2]
        elif name:
            texts[name] += f" {line.strip()}"
    return texts


def _resolved(name: str, text: str) -> str:
    """Returns the text of an option, which may refer to the same option of another function."""
    reference = re.match(r"As in `(\w+)`\.", text)
    return argument_texts(find(f"energon_dali.{reference[1]}"))[name] if reference else text


def alternatives(annotation: Any, module: types.ModuleType) -> Iterator[str]:
    """Yields what an annotation allows, one after the other, with names of Literal types replaced by their values."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        yield from _of_node(ast.parse(annotation, mode="eval").body, module)
    elif typing.get_origin(annotation) is typing.Literal:
        yield from map(repr_of, typing.get_args(annotation))
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for one in typing.get_args(annotation):
            yield from alternatives(one, module)
    elif typing.get_origin(annotation) is not None and "Callable" in str(annotation):
        yield "function"
    else:
        yield "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _of_node(node: ast.expr, module: types.ModuleType) -> Iterator[str]:
    if isinstance(node, ast.BinOp):
        yield from _of_node(node.left, module)
        yield from _of_node(node.right, module)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        yield from (repr_of(ast.literal_eval(value)) for value in values)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Callable"):
        yield "function"
    elif isinstance(node, ast.Name) and typing.get_origin(getattr(module, node.id, None)) is not None:
        yield from alternatives(getattr(module, node.id), module)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _of_node(ast.parse(node.value, mode="eval").body, module)
    else:
        yield ast.unparse(node)


# --- cells ----------------------------------------------------------------------------------------------------------


def repr_of(value: object) -> str:
    """Returns a value as it is written in Python, with double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def shown_default(option: Option) -> str:
    """Returns the cell with the default of an option."""
    value = option.default
    if value is MISSING:
        return "required"
    if callable(value) and hasattr(value, "__name__"):
        return code(value.__name__)
    if isinstance(value, int) and not isinstance(value, bool):
        for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if value >= size and value % size == 0 and option.unit == "bytes":
                return f"{value // size:,} {name}"
        return f"{value:,}"
    return code(repr_of(value))


def prose(text: str) -> str:
    """Returns text of a docstring as a cell: pages become links, and bars do not end the cell."""
    text = re.sub(r"docs/([\w/-]+)\.md(#[\w-]+)?", lambda page: f"[{page[1]}](../{page[1]}.md{page[2] or ''})", text)
    return text.replace("|", "\\|") or NONE


def code(text: str) -> str:
    """Returns a cell of code, which does not break into lines if it is short."""
    return f"<nobr>`{text}`</nobr>" if len(text) <= MOST_UNBROKEN else f"`{text}`"


def either(kinds: tuple[str, ...]) -> str:
    """Returns the cell with what an option may be."""
    if len(kinds) > MOST_KINDS:
        return f"one of {len(kinds)} names, listed below"
    shown = [code(kind.replace(" | ", " or ")) for kind in kinds]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join(["", lines[0], f"|{'---|' * len(header)}", *lines[1:], "", ""])


# --- the tables -----------------------------------------------------------------------------------------------------


def options(path: str, *names: str) -> str:
    """Returns the table of the options of a function or a class, all of them or those of some names.

    Args:
        path: Dotted name.
        *names: Names of options; "-NAME" leaves one out.
    """

    def wanted(name: str) -> bool:
        return f"-{name}" not in names and (name in names or all(one.startswith("-") for one in names))

    rows = [option_cells(option) for option in options_of(find(path), wanted)]
    return table(("option", "meaning and cost"), rows)


def option_cells(option: Option) -> tuple[str, str]:
    """Returns (name, type, unit and default; meaning and cost) of an option, or of a field of a sample."""
    unit = f", in {option.unit}" if option.unit else ""
    default = shown_default(option)
    shown = default if default == "required" else f"default {default}"
    cost = f"<br>**Cost:** {prose(option.cost)}" if option.cost else ""
    return f"{code(option.name)}<br>{either(option.kind)}{unit}<br>{shown}", prose(option.text) + cost


def sample_types() -> str:
    """Returns the table of the fields of the sample types that `dataset.yaml` can name."""
    from energon_dali.samples import kinds
    from energon_dali.samples.base import Sample

    rows = []
    for kind in vars(kinds).values():
        if isinstance(kind, type) and issubclass(kind, Sample) and kind is not Sample:
            for number, option in enumerate(options_of(kind)):
                name = code(kind.__name__) if number == 0 else ""
                rows.append((name, option_cells(option)[0], prose(option.text)))
    return table(("sample type", "field", "what it holds"), rows)


def base_fields() -> str:
    """Returns the table of the fields that all samples and all batches have."""
    from energon_dali import Batch, Sample

    rows = []
    for name in BASE_FIELDS:
        cells = [code(name)]
        for kind in (Sample, Batch):
            allowed = tuple(alternatives(kind.__annotations__[name], sys.modules[kind.__module__]))
            cells.append(f"{either(allowed)}. {prose(attribute_texts(kind)[name])}")
        rows.append(tuple(cells))
    return table(("field", "of a sample", "of a batch"), rows)


def image_decode() -> str:
    """Returns the table of the names of `image_decode`, with what an image of 640 x 480 pixels becomes."""
    from energon_dali.decode.spec import IMAGE_DECODE_NAMES, ImageSpec

    rows = []
    for name in IMAGE_DECODE_NAMES:
        image = decoded_photograph(name)
        spec = ImageSpec(name)  # type: ignore[arg-type]
        kind = {"torch": "`torch.Tensor`", "numpy": "`numpy.ndarray`", "pil": "`PIL.Image.Image`"}[spec.container]
        if spec.container == "pil":
            shape, dtype = f"`size` {image.size}, mode `{image.mode}`", "bytes"
        else:
            shape, dtype = f"{list(image.shape)}", f"`{str(image.dtype).removeprefix('torch.')}`"
        axes = "" if spec.container == "pil" else f"{', '.join(spec.layout)}: "
        channels = {"L": "1, luminance", "RGB": "3, RGB", "RGBA": "4, RGB and alpha"}[spec.mode]
        span = "0 to 255" if spec.dtype == "uint8" else "0 to 1"
        default = " (default)" if name == "torchrgb" else ""
        rows.append((f'`"{name}"`{default}', kind, f"{axes}{shape}", dtype, span, channels))
    return table(("name", "type", "shape", "dtype", "range", "channels"), rows)


@cache
def photograph(width: int = 640, height: int = 480) -> bytes:
    """Returns a JPEG of smooth colours."""
    import io

    import numpy as np
    from PIL import Image

    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) % 256], axis=-1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "jpeg")
    return file.getvalue()


def decoded_photograph(name: str) -> Any:
    """Returns an image of 640 x 480 pixels as a name of `image_decode` makes it."""
    from energon_dali import SampleDecoder

    return SampleDecoder(image_decode=name).decode("photo.jpg", photograph())  # type: ignore[arg-type]


def operations() -> str:
    """Returns the table of the options of all image operations."""
    from energon_dali.decode.operations import OPERATIONS

    rows = [
        (code(kind.__name__) if number == 0 else "", *option_cells(option))
        for kind in OPERATIONS
        for number, option in enumerate(options_of(kind))
    ]
    return table(("operation", "option", "meaning and cost"), rows)


def hooks() -> str:
    """Returns the table of the hooks in their order: what each receives and returns."""
    from energon_dali import TaskEncoder
    from energon_dali.task_encoder.encoder import HOOKS, MEASURE_HOOK

    several = re.search(
        r"drop its input\. (.*?) may be generator functions", " ".join((TaskEncoder.__doc__ or "").split())
    )
    assert several, "the docstring of TaskEncoder names the hooks that may be generator functions"
    rows = []
    for name in (*HOOKS, MEASURE_HOOK):
        hook = getattr(TaskEncoder, name)
        signature = inspect.signature(hook)
        received = [f"{one.name}: {in_words(one.annotation)}" for one in list(signature.parameters.values())[1:]]
        meaning = inspect.getdoc(hook).partition("\n\n")[0].replace("\n", " ").removeprefix("Returns ")
        yields = ("without packing" if name == "postencode_sample" else "yes") if f"`{name}`" in several[1] else "no"
        returned = f"**returns** {in_words(signature.return_annotation)}"
        rows.append(
            (
                f"{code(name)}<br>may yield several: {yields}",
                "<br>".join([*received, returned]),
                prose(meaning[0].upper() + meaning[1:]),
            )
        )
    return table(("hook", "receives and returns", "meaning"), rows)


WORDS = {
    "T_sample": "sample",
    "T_encoded_sample": "encoded sample",
    "T_raw_batch": "batch",
    "T_batch": "batch for the trainer",
}
"""What the type parameters of TaskEncoder stand for."""


def in_words(annotation: str) -> str:
    """Returns an annotation as a cell, with type parameters in words: "list of encoded samples"."""
    for parameter, words in sorted(WORDS.items(), key=lambda pair: -len(pair[0])):
        annotation = re.sub(rf"\blist\[{parameter}\]", f"list of {words}s", annotation)
        annotation = re.sub(rf"\b{parameter}\b", words, annotation)
    annotation = annotation.replace("list[list of encoded samples]", "list of lists of encoded samples")
    return annotation.replace(" | ", " or ")


def image_in_hooks() -> str:
    """Returns the table of what the image of a sample is in each hook, by decoder, as a real loader shows them."""
    from energon_dali import DaliDecoder, FrontEnd, SampleDecoder

    front_end = FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 50176})
    columns = {
        "`SampleDecoder()`": SampleDecoder(),
        '`DaliDecoder(image_decode_device="cpu")`': DaliDecoder(image_decode_device="cpu"),
        "`SampleDecoder(front_end=...)`": SampleDecoder(front_end=front_end),
        "`decoder = None`": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        prepare_captions(Path(folder))
        seen = [images_seen(Path(folder), decoder) for decoder in columns.values()]
    rows = [(code(hook), *(column[hook] for column in seen)) for hook in seen[0]]
    return table(("hook", *columns), rows)


def prepare_captions(folder: Path) -> None:
    """Makes a dataset of four images of 640 x 480 pixels with captions, and prepares it."""
    import io
    import tarfile

    from click.testing import CliRunner

    from energon_dali.cli.main import main as command

    with tarfile.open(folder / "shard.tar", "w") as shard:
        for number in range(4):
            for suffix, content in (("jpg", photograph()), ("txt", b"A caption")):
                entry = tarfile.TarInfo(f"{number}.{suffix}")
                entry.size = len(content)
                shard.addfile(entry, io.BytesIO(content))
    arguments = ["prepare", str(folder), "--non-interactive", "--split-ratio", "1,0,0", "--num-workers", "1"]
    fields_ = ["--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}']
    done = CliRunner().invoke(command, [*arguments, *fields_])
    assert done.exit_code == 0, done.output


def images_seen(folder: Path, decoder: Any) -> dict[str, str]:
    """Returns what the image of a sample is in each hook of a packing task encoder."""
    import energon_dali as ed

    seen: dict[str, str] = {}

    class Encoder(ed.TaskEncoder[Any, Any, Any, Any]):
        def preencode_sample(self, sample: Any) -> Any:
            seen.setdefault("preencode_sample", in_short(sample.image))
            return sample

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            seen.setdefault("select_samples_to_pack", in_short(samples[0].image))
            return [[sample] for sample in samples]

        def postencode_sample(self, sample: Any) -> Any:
            seen.setdefault("postencode_sample", in_short(sample.image))
            return sample

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            seen.setdefault("pack_selected_samples", in_short(samples[0].image))
            return samples[0]

        def batch(self, samples: list[Any]) -> Any:
            seen.setdefault("batch", in_short(samples[0].image))
            if hasattr(samples[0].image, "front_end"):
                return ed.batch_vision([[sample.image] for sample in samples])
            return super().batch(samples)

        def encode_batch(self, batch: Any) -> Any:
            shown = in_short(batch["pixel_values"] if isinstance(batch, dict) else batch.image)
            seen.setdefault("encode_batch", shown)
            return batch

    encoder = Encoder()
    encoder.decoder = decoder
    config = ed.WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = ed.get_train_dataset(
        folder, worker_config=config, batch_size=2, packing_buffer_size=2, task_encoder=encoder
    )
    with ed.get_loader(dataset) as loader:
        next(iter(loader))
    return seen


def in_short(value: Any) -> str:
    """Returns the type of a value as a cell, with the dtype and shape of tensors."""
    from energon_dali import MediaHandle

    if isinstance(value, list):
        return f"list of {in_short(value[0])}" if value else "empty list"
    if hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "`MediaHandle`" if isinstance(value, MediaHandle) else f"`{type(value).__name__}`"


def front_ends() -> str:
    """Returns the table of what `batch_vision` returns, by family of image processors."""
    from energon_dali.decode.front_ends.registry import FAMILIES

    return table(VISION_HEADER, [front_end_row(family) for family in FAMILIES])


VISION_HEADER = ("family", "`image_processor_type`", "tokens", "what `batch_vision` returns for N images")


def front_end_row(family: type) -> tuple[str, ...]:
    """Returns the row of a family, of images of 640 x 480 pixels; entries that another size changes have a star."""
    from energon_dali import SampleDecoder, batch_vision

    front_end, name = default_front_end(family)
    decoder = SampleDecoder(front_end=front_end)
    batches = []
    for size in ((640, 480), (300, 500)):
        image = decoder.stage("jpg", photograph(*size)).decode()
        batches.append([batch_vision([[image]] * count) for count in (1, 2)])
    tokens = front_end.layout(640, 480).num_tokens
    (one, two), (other, _) = batches
    entries = batch_entries(one, two, other)
    return f"`{front_end.family}`", f"`{name}`", str(tokens) if tokens else NONE, "<br>".join(entries)


def video_front_ends() -> str:
    """Returns the table of what `batch_vision` returns, by family of video processors."""
    from energon_dali.decode.front_ends.registry import VIDEO_FAMILIES

    return table(VIDEO_HEADER, [video_front_end_row(family) for family in VIDEO_FAMILIES])


VIDEO_HEADER = ("family", "`video_processor_type`", "frames", "tokens", "what `batch_vision` returns for N videos")


def video_front_end_row(family: Any) -> tuple[str, ...]:
    """Returns the row of a family, of videos of 4 seconds; entries that another size changes have a star."""
    from energon_dali import SampleDecoder, VideoClips, VideoFrontEnd, batch_vision

    name = next(name for name in family.processors if "Video" in name)
    front_end = VideoFrontEnd.from_processor({"video_processor_type": name})
    decoder = SampleDecoder(av_decode=VideoClips(front_end=front_end))
    batches = []
    for size in ((320, 240), (192, 320)):
        handle = decoder.stage("mp4", video(*size))
        made = decoder.decode("video.mp4", video(*size))
        batches.append((handle, made, [batch_vision([[made]] * count) for count in (1, 2)]))
    (handle, made, (one, two)), (_, _, (other, _)) = batches
    entries = batch_entries(one, two, other)
    frames = str(len(made.layout.frames)) if hasattr(made.layout, "frames") else NONE
    return f"`{front_end.family}`", f"`{name}`", frames, str(handle.num_tokens or NONE), "<br>".join(entries)


@cache
def video(width: int, height: int) -> bytes:
    """Returns a video of 4 seconds at 8 frames per second."""
    import io
    from fractions import Fraction

    import av
    import numpy as np

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt, stream.time_base = width, height, "yuv420p", Fraction(1, 8)
        for number in range(32):
            pixels = np.full((height, width, 3), number * 8, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        output.mux(stream.encode())
    return file.getvalue()


def audio_front_ends() -> str:
    """Returns the table of what `batch_audio` returns, by family of feature extractors."""
    from energon_dali.decode.audio_front_ends.registry import AUDIO_FAMILIES

    return table(AUDIO_HEADER, [audio_front_end_row(family) for family in AUDIO_FAMILIES])


AUDIO_HEADER = ("family", "`feature_extractor_type`", "tokens", "what `batch_audio` returns for N recordings")


def audio_front_end_row(family: Any) -> tuple[str, ...]:
    """Returns the row of a family, of recordings of 4 seconds; entries that another duration changes have a star."""
    from energon_dali import SampleDecoder, batch_audio

    name = family.processors[0]
    config = {"feature_extractor_type": name, **({"processor_class": family.around[0]} if family.around else {})}
    front_end = family.from_processor(config)
    decoder = SampleDecoder(audio_front_end=front_end)
    short, long = (decoder.decode("recording.wav", recording(seconds)) for seconds in (4, 7))
    one, two, other = batch_audio([[short]]), batch_audio([[short]] * 2), batch_audio([[long]])
    entries = batch_entries(one, two, other)
    return f"`{front_end.family}`", f"`{name}`", str(short.num_tokens or NONE), "<br>".join(entries)


@cache
def recording(seconds: int) -> bytes:
    """Returns a recording of a tone, mono at 16 kHz, as a WAV file."""
    import io
    import wave

    import numpy as np

    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(2)
        output.setframerate(16_000)
        output.writeframes((8000 * np.sin(np.arange(seconds * 16_000) * 0.05)).astype("<i2").tobytes())
    return file.getvalue()


def default_front_end(family: Any) -> tuple[Any, str]:
    """Returns the front end of a family with the defaults of a processor, and the name of that processor."""
    from energon_dali import ConfigError, FrontEnd

    for name in family.processors:
        config: dict[str, Any] = {"image_processor_type": name}
        if family.around:
            config["processor_class"] = family.around[0]
        if name.startswith("ImageGPT"):
            config["clusters"] = [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
        try:
            front_end = FrontEnd.from_processor(config)
        except ConfigError:  # a processor without defaults of its own
            continue
        if type(front_end) is family:
            return front_end, name
    raise SystemExit(f"No processor of {family.__name__} has defaults: give it some in default_front_end.")


def batch_entries(one: dict[str, Any], two: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns what batches hold, by key; of a key that only batches of several have, the shape of two.

    Args:
        one: A batch of one.
        two: A batch of two such.
        other: A batch of one of another size.
    """
    return [
        f"`{key}`: {symbolic(one[key], value, other[key])}"
        if key in one
        else f"`{key}`, for several: {in_short(value).replace('[2,', '[N,')}"
        for key, value in two.items()
    ]


def symbolic(one: Any, two: Any, other: Any) -> str:
    """Returns the dtype and shape of a value of a batch, with N for the number of images.

    Args:
        one: The value of a batch of one image.
        two: That of a batch of two such images.
        other: That of a batch of one image of another size.
    """
    if not hasattr(one, "shape"):
        return f"`{type(one).__name__}`"
    sides = []
    for number, (side, doubled) in enumerate(zip(one.shape, two.shape, strict=True)):
        varies = other.dim() != one.dim() or other.shape[number] != side
        grows = doubled == 2 * side and doubled != side
        shown = ("N" if side == 1 else f"{side} N") if grows else str(side)
        sides.append(f"{shown}{'*' if varies else ''}")
    return f"{str(one.dtype).removeprefix('torch.')} [{', '.join(sides)}]"


# --- pages ----------------------------------------------------------------------------------------------------------

TABLES: dict[str, Callable[..., str]] = {
    "audio_front_ends": audio_front_ends,
    "base_fields": base_fields,
    "front_ends": front_ends,
    "hooks": hooks,
    "image_in_hooks": image_in_hooks,
    "image_decode": image_decode,
    "operations": operations,
    "options": options,
    "sample_types": sample_types,
    "video_front_ends": video_front_ends,
}


def filled(page: str, kinds: Container[str] = TABLES) -> str:
    """Returns the text of a page with its tables of some kinds made again."""

    def made(block: re.Match[str]) -> str:
        return block[1] + TABLES[block[2]](*block[3].split()) + block[4] if block[2] in kinds else block[0]

    return BLOCK.sub(made, page)


def main() -> None:
    """Writes the pages."""
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf-8"), sys.argv[1:] or TABLES), encoding="utf-8")


if __name__ == "__main__":
    main()
