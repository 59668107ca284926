"""FedMD: no alignment as a special case, and a round by hand."""

import naive
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS
from rounds import different_models, rounds

from fedjax_lab import tree
from fedjax_lab.methods import fedmd
from fedjax_lab.simulation import simulate

COUNT = 30


@pytest.mark.slow
def test_without_alignment_fedmd_is_local():
    method = toys.make("fedmd", toys.TASK, align_epochs=0)
    toys.same(rounds(method, 2).private.w, rounds(toys.make("local", toys.TASK), 2).private)


@pytest.mark.slow
def test_no_client_aligns_a_model_that_it_has_not_trained():
    """All models begin alike: their distance from the consensus is rounding."""
    method, local = (toys.make(name, toys.TASK) for name in ("fedmd", "local"))
    state = rounds(method, 1)
    toys.close(state.private.w, rounds(local, 1).private)
    assert state.private.trained.all()


@pytest.mark.slow
def test_a_round_of_fedmd_against_numpy():
    """A step uses the whole subset: the gradient of mean |z_w - z| is its sign / (|D| K)."""
    method = toys.make("fedmd", toys.TASK, subset=COUNT, align_epochs=2)
    models, lists = different_models()
    private = fedmd.Private(models, np.ones(toys.C, bool))
    first = simulate.init(method, KEYS, toys.C)._replace(private=private)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 1, first)
    x, _ = toys.FEDERATION.public
    x = np.asarray(x)[np.asarray(fedmd.drawn(first.server.next_key, len(x), COUNT))]
    z = sum(naive.logits(w, x) for w in lists) / toys.C
    np.testing.assert_allclose(state.server.z, z, rtol=1e-4, atol=1e-4)
    for i, w in enumerate(lists):

        def gradient(v):
            return naive.backward(v, x, np.sign(naive.logits(v, x) - z) / (COUNT * toys.K))

        aligned = naive.descend(w, gradient, steps=2)
        w = tree.take(state.private.w, i)
        naive.close(w, naive.sgd(aligned, *naive.data_of(i)), 1e-3, 1e-3)


def test_subsets_are_distinct_places_and_fit():
    places = np.asarray(fedmd.drawn(KEYS.local, 200, COUNT))
    assert len({*places}) == COUNT and (0 <= places).all() and (places < 200).all()
    assert "config.method.subset=30 is more than the 20 public" in complaint(
        fedmd.drawn, KEYS.local, 20, COUNT
    )
