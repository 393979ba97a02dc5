"""MkDocs hook: links each term of the glossary in docs/concepts.md where a page first uses it.

Terms that also have an ordinary meaning ("part", "unit", "step") are left alone, or are linked only in the phrases
below. Headings, code, links and HTML are never changed.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tests do without mkdocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

GLOSSARY = "concepts.md"
TERMS = {
    "shard": r"(?<!neither )shards?(?! caches?)",
    "sample-type": r"sample types?",
    "extent": r"extents?",
    "metadataset": r"metadatasets?",
    "plan": r"(?<=\b[Tt]he )plan\b(?! of)",
    "window": r"shuffle windows?",
    "stream": r"(?<!CUDA )(?<!media )(?<!audio )(?<!video )(?<!binary )(?<!current )streams?(?! (?:of|that|from))",
    "micro-batch": r"micro-batch(?:es)?",
    "planned-pack": r"planned packs?",
    "rank": r"ranks?|workers?",
    "worker-border": r"worker border",
    "block": r"(?<!with` )blocks?(?! feed)(?! of \d)",
    "media-handle": r"media handles?",
    "front-end": r"front ends?",
    "task-encoder": r"task encoders?|hooks?",
    "crude-sample": r"crude samples?|cookers?",
    "restore-key": r"restore keys?",
    "state": r"(?<=\b[Aa] )state\b|(?<=saved )states?|(?<=\b[Tt]he )states?\b",
}
"""What is linked to the entry of each name (`term-NAME` in the glossary); a space may be the end of a line."""
OTHER_MEANING = {
    "stream": {"av-decoder.md", "clips.md", "cuda-graphs.md", "decoding.md", "gpu.md", "gpu-evidence.md", "video.md"},
    "block": {"kernels.md", "shard-cache.md", "storage.md", "benchmarks.md", "errors.md", "values.md", "video.md"},
    "plan": {"pack.md"},
    "sample-type": {"av-decoder.md"},
}
"""Pages on which a word usually means something else."""
KEPT = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+).*?^[ \t]*(?P=fence)[ \t]*$"  # code
    r"|^#[^\n]*|^:::[^\n]*|^ *\|[^\n]*\n(?= *\|[ :|-]+\|$)|<!--.*?-->|<[^>\n]+>"  # headings, heads of tables, HTML
    r"|`+[^`]*`+|!?\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\])|^---$.*?^---$",  # inline code, links, front matter
    re.MULTILINE | re.DOTALL,
)
"""Text that is not searched."""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links terms where they are first used, except on the glossary's page, in the changelog and in the reference."""
    name = page.file.src_uri
    if name in (GLOSSARY, "changelog.md") or name.startswith("api/"):
        return markdown
    return link_terms(markdown, name)


def link_terms(markdown: str, name: str) -> str:
    """Returns the page of that name (its path in docs/) with each term linked once, where it is first used."""
    address = posixpath.relpath(GLOSSARY, posixpath.dirname(name) or ".")
    spans = [match.span() for match in KEPT.finditer(markdown)]
    found: list[tuple[int, int, str]] = []
    for term, pattern in TERMS.items():
        if posixpath.basename(name) in OTHER_MEANING.get(term, ()):
            continue
        phrase = pattern.replace(" ", r"[ \n]")
        for match in re.finditer(rf"(?<![\w-])(?:{phrase})(?![\w-])", markdown, re.IGNORECASE):
            start, end = match.span()
            if all(end <= first or start >= last for first, last in [*spans, *(pair[:2] for pair in found)]):
                found.append((start, end, term))
                break
    for start, end, term in sorted(found, reverse=True):
        markdown = f"{markdown[:start]}[{markdown[start:end]}]({address}#term-{term}){markdown[end:]}"
    return markdown
