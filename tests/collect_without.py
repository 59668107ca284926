"""Collects all tests once for each package of the command line, each time without that package.

Prints a line for each package; the exit code is the number of packages without which the collection
fails. All collections share one process, so that JAX is imported once.
"""

import contextlib
import io
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


class Absent(MetaPathFinder):
    """Finds no module of one package, as if it were not installed."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def collect(package):
    """Collects all tests without a package. Returns the exit code and what pytest printed."""
    helpers = {path.stem for path in TESTS.glob("*.py")} - {"conftest"}
    for name in list(sys.modules):
        if name.partition(".")[0] in {package, "tests", *helpers}:
            del sys.modules[name]
    absent, printed = Absent(package), io.StringIO()
    sys.meta_path.insert(0, absent)
    try:
        with contextlib.redirect_stdout(printed):
            code = pytest.main(["--collect-only", "-q", "-n0", "-m", "", str(TESTS)])
    finally:
        sys.meta_path.remove(absent)
    return code, printed.getvalue()


def main(packages):
    failed = 0
    for package in packages:
        code, printed = collect(package)
        failed += code != pytest.ExitCode.OK
        print(package, "collected" if code == pytest.ExitCode.OK else printed, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
