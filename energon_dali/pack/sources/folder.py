"""A folder of images, videos or audio; captions are in files of the same name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from energon_dali.errors import DatasetFormatError
from energon_dali.pack.columns import find_columns
from energon_dali.pack.files import MediaFolder, media_kind, suffix_of
from energon_dali.pack.options import PackOptions, choose_sample_type, make_dataset_config
from energon_dali.pack.reading import OnSkipped, ReaderSpec, Source
from energon_dali.pack.record import FilePart, JsonPart, Record, SkipRecord, TextPart, clean_key
from energon_dali.shards.documents.content import show_count
from energon_dali.shards.documents.json_text import parse_json

_CAPTIONS = {"txt": "txt", "caption": "txt", "text": "txt"}
"""Suffixes of captions, and the part that they become."""
_REFUSED = frozenset({"pkl", "pickle", "pyd", "pth", "tar"})
"""Suffixes of files that are left out: loading them can run code."""


class FolderSource(Source):
    """A folder of media.

    Args:
        root: Absolute path of the folder.
        names: The files below it, relative to it.
        options: What the user chose.

    Raises:
        DatasetFormatError: It holds no media and no text.
    """

    kind = "folder"

    def __init__(self, root: str, names: list[str], options: PackOptions) -> None:
        super().__init__()
        self.root = root
        self._options = options
        self._files = MediaFolder(root, allow_outside=options.allow_outside, fingerprint=self._fingerprint)
        names = [name for name in names if not name.startswith("__MACOSX/") and "/." not in name]
        self._groups, self._ignored = _group(names)
        if not self._groups:
            raise DatasetFormatError(
                f"{root} holds no image, video, audio or text among {len(names):,} files. Give the folder that holds "
                "the files, or a table that names them."
            )
        self._classes: list[str] = []
        """Names of classes, if they are those of the folders."""
        self._caption, self.sample_type, self._captioned = self._look()

    def _look(self) -> tuple[str, str, int]:
        """Returns (part of the caption, sample type, number of groups with a caption)."""
        roles = {kind for group in self._groups.values() for kind in map(_kind, group) if kind}
        texts = sum("txt" in map(_part_name, group) for group in self._groups.values())
        caption, count = "txt", texts
        if not texts:
            caption, count = self._caption_in_json()
        if count * 2 >= len(self._groups):
            roles.add("caption")
        if all("cls" in map(_part_name, group) for group in self._groups.values()):
            roles.add("label")
        elif self._options.sample_type == "ImageClassificationSample":
            self._classes = sorted({stem.partition("/")[0] for stem in self._groups if "/" in stem})
            roles.update({"label"} if self._classes else ())
        return caption, choose_sample_type(roles, self._options.sample_type), count

    def _caption_in_json(self) -> tuple[str, int]:
        """Returns (part, number of groups) if captions are in JSON files, by the first of them."""
        paths = [path for group in self._groups.values() for path in group if _part_name(path) == "json"]
        for path in paths[:1]:
            try:
                relative, size = self._files.look_at(path)
                value = parse_json(self._files.read(relative, size))
            except (SkipRecord, ValueError):
                continue
            if isinstance(value, dict):
                texts = [name for name, text in value.items() if isinstance(text, str)]
                column = find_columns(texts, PackOptions()).caption
                if column is not None and column.isidentifier():
                    return f"json[{column}]", len(paths)
        return "txt", 0

    def describe(self) -> list[str]:
        lines = [f"Samples: {len(self._groups):,}, of which {self._captioned:,} have a caption"]
        if self._classes:
            lines.append(f"Classes: {len(self._classes):,} folders, {self._classes[0]} to {self._classes[-1]}")
        if self._ignored:
            lines.append(f"Ignored: {show_count(len(self._ignored), 'file')} of no sample, such as {self._ignored[0]}")
        return lines

    def records(self, skipped: OnSkipped) -> Iterator[Record]:
        needs_caption = self.sample_type in ("CaptioningSample", "TextSample")
        wanted = "json" if self._caption.startswith("json") else "txt"
        for stem, paths in self._groups.items():
            try:
                parts = [FilePart(_part_name(path), *self._files.look_at(path)) for path in paths]
            except SkipRecord as error:
                skipped(paths[0], str(error))
                continue
            if needs_caption and all(part.name != wanted for part in parts):
                skipped(paths[0], f"it has no caption: there is no {stem}.{wanted}")
                continue
            record = Record(clean_key(stem), list(parts))
            if self._classes:
                folder, slash, _ = stem.partition("/")
                if not slash:
                    skipped(paths[0], "it is in no folder, which would be its class")
                    continue
                record.parts = [part for part in parts if part.name not in ("cls", "json")]
                record.parts.append(TextPart("cls", str(self._classes.index(folder))))
                record.parts.append(JsonPart("json", {"label_name": clean_key(folder)}))
            yield record

    def reader(self) -> ReaderSpec:
        is_json = self._caption.startswith("json") and self.sample_type in ("CaptioningSample", "TextSample")
        needed = self._caption[5:-1] if is_json else None
        return ReaderSpec(self.root, self.root, self._options.allow_outside, needed_json=needed)

    def dataset_config(self, part_names: Iterable[str]) -> dict[str, Any]:
        return make_dataset_config(self.sample_type, part_names, caption=self._caption)


def _part_name(path: str) -> str:
    suffix = suffix_of(path)
    return _CAPTIONS.get(suffix, suffix)


def _kind(path: str) -> str | None:
    return media_kind(suffix_of(path))


def _group(names: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the files of each sample by its stem, and the files that belong to none.

    Files with one stem make a sample: cat.jpg and cat.txt. If there are two images with one stem, each makes a sample
    with the same captions. Captions may also be named after the whole file, such as cat.jpg.txt.
    """
    by_stem: dict[str, list[str]] = defaultdict(list)
    for name in names:
        suffix = suffix_of(name)
        if suffix not in _REFUSED:
            by_stem[name[: -len(suffix) - 1] if suffix else name].append(name)
    with_media = any(_kind(name) for name in names)
    named_files = {name for name in names if _kind(name)} if with_media else set()
    groups: dict[str, list[str]] = {}
    ignored: list[str] = []
    for stem, files in sorted(by_stem.items()):
        if not with_media:
            texts = [file for file in files if _part_name(file) == "txt"]
            if texts:
                groups[stem] = _unique_parts(files)
            else:
                ignored += files
            continue
        media = [file for file in files if _kind(file)]
        others = [file for file in files if not _kind(file)]
        if not media:
            if stem not in named_files:
                ignored += files
            continue
        sets = _split_kinds(media)
        for number, chosen in enumerate(sets):
            companions = [found for file in chosen for found in by_stem.get(file, ())]
            groups[stem if not number else chosen[0]] = _unique_parts([*chosen, *companions, *others])
    return groups, ignored


def _split_kinds(media: list[str]) -> list[list[str]]:
    """Returns the media of each sample: one of a kind in the first one, and each further one of its own."""
    first: list[str] = []
    further: list[list[str]] = []
    for file in media:
        if all(_kind(file) != _kind(other) for other in first):
            first.append(file)
        else:
            further.append([file])
    return [first, *further]


def _unique_parts(files: list[str]) -> list[str]:
    """Returns the files whose part is the first of its name."""
    found: dict[str, str] = {}
    for file in files:
        name = _part_name(file)
        if name:
            found.setdefault(name, file)
    return list(found.values())
