"""Checks that an evaluation in pieces of the clients gives the counts of one of all clients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab.engine.host import evaluation, subsets
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.engine.host.host_state import HostState, to_bits
from fedjax_lab.simulation import evaluate, metrics, simulate
from fedjax_lab.simulation.population import new_on_host

ONE_PROCESS = Owners((0, toys.C))
FEDERATION = toys.with_new(toys.FEDERATION)._replace(
    validation=toys.FEDERATION.train, unseen=jnp.arange(150, 290), domain=jnp.arange(600) % 2
)
WHOLE = jax.tree.map(np.asarray, FEDERATION)
SUMMED = tuple(m for m in metrics.BUILT_IN.values() if isinstance(m, metrics.Summed))[1:]


PAIRS = [("finetune", True), ("scaffold", False), ("fedper", True)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, stream", PAIRS)
def test_evaluation_in_pieces_gives_the_counts_of_one_evaluation(name, stream):
    """A piece has two of eight clients or of three new ones, and 60 of 140 or 200 shared rows.

    The methods have a model for new clients, none, and clients that train before they are scored.
    """
    method = toys.make(name)
    program = simulate.Program(
        method, toys.PLAN._replace(eval_batch=20, num_domains=2, metrics=SUMMED), toys.VECTORIZED
    )
    new = jax.tree.map(jnp.asarray, new_on_host(FEDERATION, toys.K))
    lane = simulate.Lane(FEDERATION, toys.POPULATION, KEYS, new=new)
    state = toys.player(method)(KEYS, 0, 3)[0]
    store = HostState(state.private, toys.C)
    store.write(np.arange(toys.C), to_bits(state.private))
    score = jax.jit(partial(evaluate.score, program))
    expected = score(lane, state, 3)

    scored = []
    for kind in evaluation.kinds(method, WHOLE, ONE_PROCESS, 2, 60):
        part = subsets.row_subsets(FEDERATION, WHOLE, kind.sets, ONE_PROCESS)
        if stream:
            part = subsets.with_examples(WHOLE, kind.sets, len(kind.clients[0]), 60, ONE_PROCESS)
        scored.append((kind, part))
    scorer = evaluation.Scorer(lane, store, state, scored, ONE_PROCESS, toys.JIT.place)
    scorer.compiled = [score] * len(scored)
    got = scorer.score(state.server, 3)
    names = {"loss", "top5", "macro_f1", "ece", "perplexity", "word_accuracy"}
    absent = {"scaffold": {"new_tuned"}, "fedper": {"new", "new_tuned"}, "finetune": set()}[name]
    for form, ours, theirs in zip(got._fields, got, expected, strict=True):
        assert (ours is None) == (theirs is None) == (form in absent)
        if ours is None:
            continue
        toys.same(ours[:2], theirs[:2])
        assert ours.measured.keys() == theirs.measured.keys() == names
        toys.close(ours.measured, theirs.measured, rtol=1e-6)  # sums in another order
