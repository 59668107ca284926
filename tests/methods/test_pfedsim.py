"""Compares pFedSim with plain NumPy."""

import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import different_models, local_work

from fedjax_lab import tree


@pytest.mark.slow
def test_against_numpy():
    """A round of personalization after FedAvg, and the message of the round after it."""
    warmup, personalize = toys.make("pfedsim", toys.TASK, warmup=0.5)(5)
    assert (warmup.rounds, personalize.rounds) == (2, 3)
    averaged = warmup.method.init(KEYS.init, toys.C)
    state = personalize.start(KEYS.init, toys.C, averaged, {})
    (exchange,), first = personalize.method.round, naive.first_weights()
    sent = exchange.send(state.server, 3)
    np.testing.assert_allclose(sent.params["Dense_0"]["kernel"], first[0], rtol=1e-4)
    models, arrays = different_models()
    upload, _, [(_, start, _)], _ = local_work(personalize.method, sent, tree.take(models, 3), 3)
    naive.close(start, first[:2] + arrays[3][2:])
    naive.close(upload, [a + 0.125 for a in first[:2] + arrays[3][2:]])
    ids = [6, 1, 3]
    cohort = tree.take(toys.POPULATION, jnp.array(ids))
    server = exchange.aggregate(state.server, tree.take(models, jnp.array(ids)), cohort)
    weights = np.zeros(toys.C)
    for j in ids:
        a, b = arrays[1][2], arrays[j][2]
        norms = np.linalg.norm(a, axis=0) * np.linalg.norm(b, axis=0)
        phi = 0.9999 if j == 1 else max(0, ((a * b).sum(0) / norms).mean())
        weights[j] = -np.log(1 - phi)
    assert (weights > 0).sum() > 1
    bodies = [arrays[j][:2] if j in ids else first[:2] for j in range(toys.C)]
    expected = naive.mean(weights / weights.sum(), bodies)
    got = exchange.send(server, 1).params["Dense_0"]
    np.testing.assert_allclose(got["kernel"], expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got["bias"], expected[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("share, rounds", [(0.5, (2, 3)), (0.2, (1, 4)), (0.8, (4, 1))])
def test_a_share_of_the_rounds_is_fedavg(share, rounds):
    stages = toys.make("pfedsim", toys.TASK, warmup=share)(5)
    assert tuple(stage.rounds for stage in stages) == rounds
    assert [stage.start is None for stage in stages] == [True, False]
