"""The largest difference of each method from its NumPy version: runs the tests that compare them.

    python launch/numpy_errors.py [--methods=fedavg,ditto,...]

These are the tests of tests/methods with "numpy" in their names. For each file it prints the
largest absolute difference between two arrays that any of them compares: models after a few rounds,
and what clients and server keep beside them. FedProx is compared in the file of FedAvg.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1] / "tests" / "methods"


class Differences:
    """A plugin of pytest that watches np.testing.assert_allclose."""

    def __init__(self):
        self.largest = {}  # by method
        self._method = ""
        self._check = np.testing.assert_allclose
        np.testing.assert_allclose = self.assert_allclose

    def pytest_runtest_setup(self, item):
        self._method = item.path.stem.removeprefix("test_")

    def assert_allclose(self, actual, desired, *args, **kwargs):
        difference = np.abs(np.asarray(actual, np.float64) - np.asarray(desired, np.float64))
        largest = float(np.max(difference, initial=0.0))
        self.largest[self._method] = max(largest, self.largest.get(self._method, 0.0))
        self._check(actual, desired, *args, **kwargs)


def main(argv: list[str]) -> int:
    """The command, without its name; returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="*")
    patterns = parser.parse_args(argv).methods.split(",")
    files = sorted(str(path) for each in patterns for path in TESTS.glob(f"test_{each}.py"))
    if not files:
        parser.error(f"--methods={','.join(patterns)}: there are no tests of these methods")
    options = ["-n0", "-q", "-m", "slow or not slow", "-k", "numpy", *files]
    code = pytest.main(options, plugins=[differences := Differences()])
    for method, largest in sorted(differences.largest.items()):
        print(f"{method:16} {largest:.1e}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
