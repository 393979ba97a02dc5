"""`python tools/check_links.py`: checks the links of README.md, CONTRIBUTING.md, CHANGELOG.md, docs/ and examples/.

A relative link has to lead to a file or folder, and its anchor to a heading or an id there. So does an address of this
project's own repository. Other addresses are checked for their form alone, without a network.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = re.compile(r"https://github\.com/energon-dali/energon-dali/(?:blob|tree|raw)/[\w.-]+/(.+)")
RAW = re.compile(r"https://raw\.githubusercontent\.com/energon-dali/energon-dali/[\w.-]+/(.+)")
_FENCES = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)[^`]+?\1")
_LINK = re.compile(r"\]\(<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\)")
_HTML = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=[\"']([^\"']+)[\"']")
_HEADING = re.compile(r"^#+[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_ID = re.compile(r"<\w+[^>]*?\b(?:id|name)=[\"']([^\"']+)[\"']")


def main() -> int:
    """Prints each fault; returns 1 if there is one."""
    faults = [fault for page in pages() for fault in faults_of(page)]
    for fault in faults:
        print(fault)
    return int(bool(faults))


def pages() -> list[Path]:
    """Returns the pages that are checked."""
    folders = (ROOT / "docs", ROOT / "examples")
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(page for folder in folders for page in sorted(folder.rglob("*.md"))),
    ]


def faults_of(page: Path) -> list[str]:
    """Returns what is wrong with the links of a page."""
    faults = [fault_of(page, target) for target in targets_of(page)]
    return [f"{page.relative_to(ROOT)}: {fault}" for fault in faults if fault]


def targets_of(page: Path) -> list[str]:
    """Returns what the links and images of a page lead to; code is not searched."""
    text = _CODE.sub("", _FENCES.sub("", page.read_text(encoding="utf-8")))
    return [*_LINK.findall(text), *_HTML.findall(text)]


def own_path(target: str) -> str:
    """Returns the path in this repository, with its anchor, that an address leads to; "" for other addresses."""
    own = REPOSITORY.fullmatch(target) or RAW.fullmatch(target)
    return own[1] if own else ""


def fault_of(page: Path, target: str) -> str:
    """Returns what is wrong with a link of a page; "" if nothing is."""
    own = own_path(target)
    try:
        parts = urlsplit(own or target)
    except ValueError as error:
        return f"{target} is not an address: {error}"
    if parts.scheme == "mailto":
        return "" if "@" in parts.path else f"{target} is not an address of mail"
    if parts.scheme or parts.netloc:
        formed = parts.scheme in ("http", "https") and "." in parts.netloc
        return "" if formed else f"{target} is not an address of the web"
    base = ROOT if own else page.parent
    file = (base / unquote(parts.path)).resolve() if parts.path else page
    if not file.exists():
        return f"{target} leads to no file"
    if parts.fragment and file.suffix == ".md" and parts.fragment not in anchors(file):
        return f"{target} leads to no heading"
    return ""


@cache
def anchors(page: Path) -> frozenset[str]:
    """Returns the anchors of a page: those of its headings as the site makes them, and the ids in its HTML."""
    text = _FENCES.sub("", page.read_text(encoding="utf-8"))
    found = set(_ID.findall(text))
    for heading in _HEADING.findall(text):
        slug, number = slug_of(heading), 0
        while (name := f"{slug}_{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return frozenset(found)


def slug_of(heading: str) -> str:
    """Returns the anchor of a heading, as Python-Markdown's `toc` extension makes it."""
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


if __name__ == "__main__":
    sys.exit(main())
