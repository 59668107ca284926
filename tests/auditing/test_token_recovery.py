"""Tokens from the update of a table of embeddings."""

import numpy as np
import pytest
import toys
from inputs import complaint

import fedjax_lab
from fedjax_lab.auditing.attacks.token_recovery import shares
from fedjax_lab.auditing.target import untrained

VOCABULARY = 40
TEXTS = {"model": {"name": "fasttext", "width": 4}, "run": {"cohort": 3, "rounds": 1}}


def test_perfect_and_useless_attackers_are_at_the_ends_of_both_shares():
    x = np.array([[3, 1, 3], [5, -1, 1]])
    occurs = np.isin(np.arange(10), [1, 3, 5])[:, None] * np.ones(2)
    assert shares(x, occurs, 1e-3) == {"tokens": 3, "precision": 100.0, "recall": 100.0}
    assert shares(x, 1 - occurs, 1e-3) == {"tokens": 3, "precision": 0.0, "recall": 0.0}
    noisy = shares(x, occurs + 0.1, 1e-3)
    assert (noisy["precision"], noisy["recall"]) == (30.0, 100.0)


@pytest.mark.slow
def test_the_rows_of_embeddings_that_change_are_those_of_the_tokens(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = rng.integers(0, VOCABULARY, (90, 5)).astype(np.int32)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    run = untrained(toys.build(tmp_path, **TEXTS), None)
    found = fedjax_lab.audit(run, "token_recovery", examples=2, clients=2)
    assert [(r["precision"], r["recall"]) for r in found.rows] == [(100.0, 100.0)] * 2
    assert all(5 < row["tokens"] <= 10 for row in found.rows)
    assert "--attack=token_recovery" in complaint(fedjax_lab.audit, run, "inversion")


def test_other_examples_have_no_tokens(tmp_path):
    run = untrained(toys.build(tmp_path), None)
    assert "--attack=inversion" in complaint(fedjax_lab.audit, run, "token_recovery")
