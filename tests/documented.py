"""The commands `python launch/...` of README and the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def documented(text: str) -> list[str]:
    """The commands `python launch/...` of a page, in blocks and in sentences."""
    text = text.replace("\\\n", " ")
    return re.findall(r"python launch/[^`\n]*", text)


def all_documented():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return sorted({line for page in pages for line in documented(page.read_text())})
