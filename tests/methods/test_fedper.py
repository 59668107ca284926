"""Tests FedPer and LG-FedAvg: where the head begins, and rounds against NumPy."""

import naive
import pytest
import toys
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import simulate


@pytest.mark.parametrize(
    "name, layers, private",
    [
        ("fedper", 1, {"head"}),
        ("fedper", 2, {"Dense_1", "BatchNorm_1", "head"}),
        ("fedrep", 2, {"Dense_1", "BatchNorm_1", "head"}),
        ("lg_fedavg", 1, {"Dense_0", "BatchNorm_0", "Dense_1", "BatchNorm_1"}),
        ("lg_fedavg", 2, {"Dense_0", "BatchNorm_0"}),
    ],
)
def test_head_layers_determines_which_layers_are_private(name, layers, private):
    task = make_task(nets.mlp(toys.K, width=3, depth=2, norm=True), (toys.D,), toys.K)
    state = simulate.init(toys.make(name, task, head_layers=layers), KEYS, toys.C)
    assert {leaf.split("/")[1] for leaf in tree.names(state.private)} == private
    shared = {leaf.split("/")[1] for leaf in tree.names(state.server)}
    assert shared == set(task.layers) - private


@pytest.mark.slow
@pytest.mark.parametrize("name, head", [("fedper", True), ("lg_fedavg", False)])
def test_fedper_and_lg_fedavg_against_numpy(name, head):
    """Plays two rounds with three of eight clients. [:2] is the body, [2:] is the head."""
    method = toys.make(name, toys.TASK)
    first = naive.first_weights()
    body, top = [first[:2]] * toys.C, [first[2:]] * toys.C
    for t in range(2):
        ids = naive.cohort(method, t)
        models = [naive.sgd(body[i] + top[i], *naive.data_of(i)) for i in ids]
        mean = naive.mean_by_size(ids, models)
        for i, m in zip(ids, models, strict=True):
            body[i], top[i] = m[:2], m[2:]
        if head:
            body = [mean[:2]] * toys.C
        else:
            top = [mean[2:]] * toys.C
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    for i in range(toys.C):
        model = tree.join(state.server, tree.take(state.private, i))
        naive.close(model, body[i] + top[i])
