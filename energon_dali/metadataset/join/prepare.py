"""Prepares the joins of a metadataset: builds the indices that are missing, and removes those that nothing uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from energon_dali.metadataset.document import Document
from energon_dali.metadataset.join.build import build_join_index
from energon_dali.metadataset.join.columns import energon_names, open_columns, own_name
from energon_dali.metadataset.join.index_file import JoinIndexFile
from energon_dali.metadataset.reference import LeafReference
from energon_dali.shards import StoragePath


def prepare_joins(leaves: Sequence[LeafReference], document: Document, clean: bool) -> list[str]:
    """Builds the indices of joins that have no whole one of their present state, and returns the paths of all.

    An index is written under this package's name, and under Energon's too where no other join of the same folder has
    that name: Energon's names do not tell split parts apart.

    Args:
        leaves: The joins.
        document: The metadataset that they are prepared for.
        clean: Remove indices beside it that none of the joins uses.

    Raises:
        DatasetError: Datasets cannot be joined.
        StorageError: A file cannot be read or written.
    """
    wanted = {}
    for leaf in leaves:
        assert leaf.join is not None, "only joins are prepared"
        columns = open_columns(leaf.join.columns, leaf.place)
        wanted[leaf.join.index_folder / own_name(columns)] = (leaf, columns)
    foreign = {
        own: StoragePath(own.url.rpartition("/")[0]) / next(energon_names(columns))
        for own, (_, columns) in wanted.items()
    }
    claims = Counter(foreign.values())
    used = []
    for own, (leaf, columns) in wanted.items():
        names = [own, foreign[own]] if claims[foreign[own]] == 1 else [own]
        used += names
        if not all(JoinIndexFile(name, len(columns)).is_whole() for name in names):
            build_join_index(columns, names, leaf.place)
    if clean and document.file != "dict":
        folder = StoragePath(f"{document.file}.cache")
        kept = {path.name for path in used if path.url.startswith(f"{folder.url}/")}
        for name in folder.list_files() if folder.is_dir() else []:
            if name.startswith("join_index_") and name.endswith(".bin") and name not in kept:
                (folder / name).remove()
    return [path.url for path in used]
