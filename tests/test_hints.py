"""The hints at the end of a run: from facts to lines, and the facts of a run."""

import math

import numpy as np
import pytest
import toys

from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import hints
from fedjax_lab.types import State, Weights

CHANCE, NORM = "is chance level for", "BatchNorm"
TABLE = [  # accuracy, classes, unlike domains, shared statistics -> the words of each hint
    (91.6, 10, True, True, []),
    (25.0, 10, True, True, [NORM]),
    (25.0, 10, False, True, []),
    (25.0, 10, True, False, []),
    (12.0, 10, False, False, [CHANCE]),
    (10.0, 10, True, True, [CHANCE, NORM]),
    (13.0, 10, False, False, []),
    (51.0, 2, False, False, [CHANCE]),
    (53.0, 2, False, False, []),
    (1.4, 100, False, False, [CHANCE]),
    (4.0, 100, False, False, []),
    (0.0, 0, False, False, []),  # of a task without classes
    (math.nan, 10, True, True, []),
]


@pytest.mark.parametrize("accuracy, classes, unlike, shared, said", TABLE)
def test_hints_follow_from_the_facts(accuracy, classes, unlike, shared, said):
    told = hints.lines(hints.Facts(accuracy, classes, unlike, shared))
    assert len(told) == len(said)
    assert all(words in line for words, line in zip(said, told, strict=True))


@pytest.mark.parametrize(
    "accuracy, miou, one_class", [(87.86, 29.29, True), (92.65, 60.0, False), (87.86, 31.0, False)]
)
def test_pixels_of_one_class_are_known_by_the_miou(accuracy, miou, one_class):
    assert hints.is_one_class(accuracy, miou, 3) == one_class
    told = hints.lines(hints.Facts(accuracy, 0, False, False, one_class))
    assert [("one class for every pixel" in line) for line in told] == [True] * one_class


@pytest.mark.parametrize(
    "held, unlike",
    [
        ([[1, 0], [0, 1], [2, 2]], True),
        ([[1, 1], [0, 1], [2, 2]], False),  # one client lacks a domain by chance
        ([[1, 0], [0, 0], [0, 0], [1, 0]], False),  # nobody has the other one
        ([[3, 1], [0, 0], [0, 0]], False),
    ],
)
def test_domains_are_unlike_if_most_clients_lack_one(held, unlike):
    assert hints.are_unlike(np.array(held)) == unlike


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, partition, stats, accuracy, said",
    [
        ("fedavg", "by_domain", {"mean": 0.0}, 25.0, [NORM]),
        ("central", "by_domain", {"mean": 0.0}, 25.0, []),  # one client has all domains
        ("fedavg", "by_domain", {"mean": None}, 25.0, []),  # they stay on the clients
        ("fedavg", "iid", {"mean": 0.0}, 25.0, []),
        ("fedavg", "iid", {}, 9.0, [CHANCE]),
        ("fedavg", "iid", {}, None, []),
    ],
)
def test_the_facts_of_a_run(method, partition, stats, accuracy, said):
    overrides = [("partition.name", partition), ("model.name", "mlp")]
    made = experiment.build(resolve(load_config(f"quickstart:{method}"), overrides), [0])
    summary = {"last": {"mean": {**toys.SCORES, "accuracy": {"mean": accuracy}}}}
    state = State(server=(Weights({}, stats), 1.0), private=())
    told = hints.run_hints(made, state, summary).get("hints", [])
    assert len(told) == len(said) and all(w in t for w, t in zip(said, told, strict=True))
