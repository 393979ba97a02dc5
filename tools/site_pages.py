"""MkDocs hook: adds README.md, CONTRIBUTING.md and CHANGELOG.md as pages, and fixes links between them and docs/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links at pages of the site; a link to any other file of the repository becomes plain text, its name."""
    root_page = page.file.src_uri in PAGES.values()
    folder = "" if root_page else posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    here = posixpath.dirname(page.file.src_uri) or "."

    def mended(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)
        return f"{image}[{text}]({posixpath.relpath(inside, here)}{anchor})" if inside else text

    return LINK.sub(mended, markdown)
