"""Collects tests without each package of the command line, as if it were not installed.

An argument may name several packages, with commas, which are missing together. For each argument,
all test files are collected that import one of its packages, or a module beside the tests that
does. Prints what fails; the exit code is the number of arguments for which a collection fails. All
collections share one process, so that JAX is imported once.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "launch", "docs/generate")  # of setup.cfg's pythonpath
TEXTS = {path: path.read_text() for name in FOLDERS for path in (ROOT / name).rglob("*.py")}


def affected(packages):
    """The files that import a package, directly or through other modules of these folders."""
    names, files = {*packages}, set()
    while True:
        imports = re.compile(rf"(\b(import|from) |module\(\")({'|'.join(names)})\b")
        found = {path for path, text in TEXTS.items() if path not in files and imports.search(text)}
        if not found:
            return files
        files |= found
        names |= {path.stem for path in found if not path.stem.startswith(("test_", "conftest"))}


def collect(packages):
    """Collects the affected tests without packages; returns what pytest printed if it failed."""
    files = affected(packages) - {Path(__file__), ROOT / "tests/optional.py"}
    stale = {*packages, "tests", *(path.stem for path in files)}
    for name in [name for name in sys.modules if name.partition(".")[0] in stale]:
        del sys.modules[name]
    missing = dict.fromkeys(packages)  # importing None raises ModuleNotFoundError
    sys.modules.update(missing)
    tests = sorted(str(path) for path in files if path.stem.startswith("test_"))
    if not tests:
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(["--collect-only", "-q", "-n0", "-m", "", *tests])
    for package in missing:
        del sys.modules[package]
    fine = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return "" if fine else printed.getvalue()


if __name__ == "__main__":
    failures = {names: collect(names.split(",")) for names in sys.argv[1:]}
    print(*(f"without {name}:\n{text}" for name, text in failures.items() if text), sep="\n")
    sys.exit(sum(map(bool, failures.values())))
