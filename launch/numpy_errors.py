"""Prints the largest difference of each method from its NumPy version in the tests.

    python launch/numpy_errors.py [--methods=fedavg,ditto,...]

Runs the tests of tests/methods that have "numpy" in their names. For each test file it prints the
largest absolute difference between any two arrays that these tests compare: models after a few
rounds, and the states of the clients and the server. FedProx is compared in FedAvg's test file.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1] / "tests" / "methods"


class Differences:
    """A pytest plugin that records the differences seen by np.testing.assert_allclose."""

    def __init__(self):
        self.largest = {}  # {test file without "test_": largest difference}
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
    """Run the command with the arguments `argv`, without its name; returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="*")
    patterns = parser.parse_args(argv).methods.split(",")
    files = sorted(str(path) for each in patterns for path in TESTS.glob(f"test_{each}.py"))
    if not files:
        parser.error(f"--methods={','.join(patterns)}: tests/methods has no tests of these methods")
    options = ["-n0", "-q", "-m", "slow or not slow", "-k", "numpy", *files]
    code = pytest.main(options, plugins=[differences := Differences()])
    for method, largest in sorted(differences.largest.items()):
        print(f"{method:16} {largest:.1e}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
