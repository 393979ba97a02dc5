"""MkDocs hook: adds README.md, CONTRIBUTING.md, CHANGELOG.md and the tutorials as pages, and points links at pages."""

from __future__ import annotations

import json
import posixpath
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import tutorials  # noqa: E402

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PAGES |= {f"{tutorials.FOLDER}/{path.name}": f"tutorials/{path.stem}.md" for path in tutorials.sources()}
SOURCES = {page: source for source, page in PAGES.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not Markdown in docs/, and each tutorial as a notebook."""
    for source, page in PAGES.items():
        path = ROOT / source
        if path.suffix == ".md":
            files.append(File.generated(config, page, content=path.read_text(encoding="utf-8")))
            continue
        files.append(File.generated(config, page, content=tutorials.page_text(path)))
        files.remove(files.src_uris[source.removeprefix("docs/")])  # the program: readers get it from the repository
        notebook = json.dumps(tutorials.notebook(path), ensure_ascii=False)
        files.append(File.generated(config, page.removesuffix(".md") + ".ipynb", content=notebook))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links at pages and images of the site, and links to any other file at the repository."""
    here = page.file.src_uri

    def target_of(path: str) -> str:
        inside = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if inside not in files.src_uris:
            return tutorials.file_url(path)
        return posixpath.relpath(inside, posixpath.dirname(here) or ".")

    return tutorials.map_links(markdown, SOURCES.get(here, f"docs/{here}"), target_of)
