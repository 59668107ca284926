"""FedBN: which layers stay on a client, and that the client is scored with them."""

import jax
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import scores

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


@pytest.mark.slow
def test_fedbn_keeps_the_batch_norm_layers_on_the_clients():
    state, _ = toys.player(toys.make("fedbn"))(KEYS, 0, 3)
    private, shared = tree.names(state.private), tree.names(state.server)
    assert {name.split("/")[1] for name in private} == set(toys.NORM.batch_norms)
    assert {name.split("/")[0] for name in private} == {"params", "stats"}
    assert not any("BatchNorm" in name for name in shared)
    scale = state.private.params["BatchNorm_0"]["scale"]
    assert np.ptp(scale, axis=0).max() > 0  # clients differ


@pytest.mark.slow
def test_a_client_is_scored_with_its_private_parameters():
    """The correct predictions are those of the client's model, not of the next client's."""
    method = toys.make("fedbn")
    state = simulate.init(method, KEYS, toys.C)
    far_apart = jax.tree.map(
        lambda a: a + jax.random.uniform(KEYS.local, a.shape, a.dtype, 0, 3), state.private
    )
    state = state._replace(private=far_apart)
    scored = scores(method, state)

    def hits(i, rows):
        w = tree.join(state.server, tree.take(state.private, i))
        logits = toys.NORM.apply(w, toys.FEDERATION.x[rows]).logits
        return int((logits.argmax(1) == toys.FEDERATION.y[rows]).sum())

    correct_counts = [hits(i, toys.FEDERATION.test[i]) for i in range(toys.C)]
    others = [hits((i + 1) % toys.C, toys.FEDERATION.test[i]) for i in range(toys.C)]
    assert correct_counts == scored.test.correct[:, 0].astype(int).tolist()
    assert correct_counts != others


def test_fedbn_averages_all_other_layers_like_fedavg():
    """From a common start, the first round equals that of FedAvg bit for bit."""
    one, _ = toys.player(toys.make("fedbn"))(KEYS, 0, 1)
    other, _ = toys.player(toys.make("fedavg"))(KEYS, 0, 1)
    shared, _ = tree.split(tree.within(("Dense_0", "head")), other.server)
    toys.same(one.server, shared)
