"""Tests LG-FedAvg against FedAvg and NumPy."""

import naive
import pytest
import toys
from naive import KEYS
from rounds import averaged

from fedjax_lab import tree
from fedjax_lab.experiment import experiment
from fedjax_lab.simulation import simulate


def test_lg_fedavg_that_only_pretrains_is_fedavg():
    stages = experiment.lay_out(toys.make("lg_fedavg", pretrain_rounds=3), 3)
    assert [stage.rounds for stage in stages] == [3]
    toys.same(toys.player(stages[0].method)(KEYS, 0, 3), averaged())


@pytest.mark.slow
def test_lg_fedavg_after_pretraining_against_numpy():
    """All clients start from the averaged body; those that do not train afterwards keep it."""
    pretrain, train = toys.make("lg_fedavg", toys.TASK, pretrain_rounds=2)(4)
    w = naive.weights_of(simulate.init(pretrain.method, KEYS, toys.C).server)
    body_by_id = {}
    for t in range(4):
        ids = naive.cohort(pretrain.method, t)
        starts = [body_by_id.get(i, w[:2]) + w[2:] for i in ids]
        models = [naive.sgd(s, *naive.data_of(i)) for i, s in zip(ids, starts, strict=True)]
        mean = naive.mean_by_size(ids, models)
        w = mean if t < 2 else w[:2] + mean[2:]
        body_by_id |= {i: m[:2] for i, m in zip(ids, models, strict=True)} if t >= 2 else {}
    state, _ = toys.player(pretrain.method, plan=naive.FULL)(KEYS, 0, 2)
    state = train.start(KEYS.init, toys.C, state, {})
    state, _ = toys.player(train.method, plan=naive.FULL)(KEYS, 2, 2, state)
    assert 0 < len(body_by_id) < toys.C
    for i in range(toys.C):
        model = tree.join(state.server, tree.take(state.private, i))
        naive.close(model, body_by_id.get(i, w[:2]) + w[2:])
