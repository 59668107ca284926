"""Tests the functions that the data sources share."""

import os
from pathlib import Path

import numpy as np

from fedjax_lab.data import dataset
from fedjax_lab.data import digit_domains as digits


def test_importing_the_sources_imports_no_heavy_packages():
    import subprocess
    import sys

    check = (
        "import sys, fedjax_lab.data.digit_domains, fedjax_lab.data.idx, fedjax_lab.data.arrays,"
        " fedjax_lab.data.synthetic, fedjax_lab.data.writers;"
        "print([m for m in ('matplotlib', 'sklearn', 'PIL', 'jax') if m in sys.modules])"
    )
    root = Path(digits.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[]"


def test_first_of_each_returns_the_first_rows_of_each_class():
    labels = [2, 0, 2, 2, 1, 0, 2]
    assert dataset.first_of_each(labels, 2).tolist() == [0, 1, 2, 4, 5]
    assert dataset.first_of_each(labels, 9).tolist() == list(range(7))


def test_a_pool_has_all_training_examples_first():
    x = np.arange(8)
    made = dataset.pooled(x, [[5, 6], [7]], [[0], [1, 2, 3, 4]])
    assert made["x"] is x and made["y"].tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert made["domain"].tolist() == [0, 0, 1, 0, 1, 1, 1, 1]
    assert made["test"].tolist() == [False] * 3 + [True] * 5
    assert (made["y"].dtype, made["domain"].dtype) == (np.int32, np.int32)
