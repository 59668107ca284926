"""Writes the address of the repository to the badges and the first cells of all notebooks.

python docs/generate/repository_address.py

Colab knows neither a clone nor its remote, so that a notebook must have the address itself. It is
asked from git: that of the remote `origin`, in a clone of a fork that of the fork.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = r"[\w.-]+/[\w.-]+"
PLACES = re.compile(
    rf'(colab\.research\.google\.com/github/){NAME}(?=/blob/)|(REPOSITORY = \\"https://github\.com/){NAME}'
)


def on_github(remote: str) -> str:
    """OWNER/NAME of a repository on GitHub, from the address of a remote.

    Raises SystemExit for any other address, because Colab opens notebooks only from GitHub.
    """
    match = re.fullmatch(rf".*\bgithub\.com[/:]({NAME}?)(?:\.git)?/?\s*", remote)
    if match is None:
        raise SystemExit(f"Colab opens notebooks from GitHub only, and origin is {remote!r}")
    return match[1]


def written(notebook: str, repository: str) -> str:
    """The JSON text of a notebook with the repository OWNER/NAME."""
    return PLACES.sub(lambda place: f"{place[1] or place[2]}{repository}", notebook)


def main(root: Path) -> None:
    """Changes the notebooks of the repository in this folder."""
    asked = ["git", "-C", str(root), "remote", "get-url", "origin"]
    done = subprocess.run(asked, capture_output=True, text=True)
    repository = on_github(done.stdout.strip() or done.stderr.strip())
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        path.write_text(written(text, repository), encoding="utf-8")
    print(f"the notebooks have the address https://github.com/{repository}", file=sys.stderr)


if __name__ == "__main__":
    main(ROOT)
