"""Converts links to files of the repository into links to pages of the documentation site."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

COPIES = {  # files outside of docs/ that are pages of the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "launch/README.md": "launching.md",
    "examples/own_parts/README.md": "example.md",
    "README.md": "index.md",
}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


def on_site(markdown: str, uri: str, path: str) -> str:
    """The page with its links to files replaced by links to pages of the site.

    uri: the address of the page on the site. path: its file in the repository.
    """

    def replaced(match):
        page = page_of(target(match[2], path))
        if page is None or (path.startswith("docs/") and page == target(match[2], uri)):
            return match[0]
        return (
            f"{match[1]}{posixpath.relpath(page, posixpath.dirname(uri) or '.')}{match[3] or ''})"
        )

    return LINK.sub(replaced, markdown)


def target(link: str, path: str) -> str:
    """The file to which a link in the file `path` leads, relative to the same folder as `path`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def page_of(path: str) -> str | None:
    """The page of the site that shows a file or folder of the repository; None if none does."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return path
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    if path in COPIES:
        return COPIES[path]
    return f"code/{path}.md" if (ROOT / path).is_file() and not path.startswith("..") else None


def linked_code(markdown: str, path: str) -> set[str]:
    """The files to which a page links and that the site shows as code."""
    files = {target(match[2], path) for match in LINK.finditer(markdown) if ":" not in match[2]}
    return {file for file in files if (page_of(file) or "").startswith("code/")}


def code_page(path: str) -> str:
    """The page that shows a file as code, without columns beside it; the search leaves it out."""
    language = {".py": "python", ".sh": "bash", ".cfg": "ini"}.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    matter = "---\nhide: [navigation, toc]\nsearch:\n  exclude: true\n---"
    head = f"{matter}\n\n# {Path(path).name}\n\n`{path}`"
    return f"{head}\n\n````{language}\n{text}\n````\n"
