"""Scores against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, parallel, simulate, streams
from fedjax_lab.methods.fedavg import fedavg


def test_clients_are_told_apart():
    def hits(right, asked):
        return evaluate.Counts(jnp.array(right, float), jnp.array(asked, float))

    validation = hits([[1, 0], [0, 3], [0, 0]], [[2, 0], [0, 4], [0, 0]])
    unseen = hits([[0, 5], [0, 1], [0, 3]], [[0, 10]] * 3)
    got = evaluate.summarize(evaluate.Scores(validation, None, None, unseen), ("a", "b"))
    assert got == {
        "id": 62.5,
        "id_per_client": [50, 75, None],
        "ood": pytest.approx(30),
        "ood_per_client": pytest.approx([50, 10, 30]),
    }


KEYS = streams.make_keys(jax.random.key(0))


def hits_of(w, rows):
    x, y = np.asarray(toys.FEDERATION.x)[rows], np.asarray(toys.FEDERATION.y)[rows]
    return np.asarray(toys.TASK.apply(w, x).logits).argmax(1) == y


@pytest.mark.slow
def test_scores_against_numpy():
    """FedAvg on own test rows of different lengths, validation, the world, an unseen domain."""
    test = np.asarray(toys.FEDERATION.test).copy()
    test[1, 7:] = -1
    test[4, :] = -1  # a client without test rows is left out
    domain = np.arange(600) % 3
    federation = toys.FEDERATION._replace(
        test=toys.as_rows(test),
        validation=toys.as_rows(test[:, :9]),
        unseen=jnp.arange(500, 533),
        domain=jnp.asarray(domain, jnp.int32),
    )
    method = fedavg(toys.TASK)
    state = toys.player(method)(KEYS, 0, 5)[0]
    plan = toys.PLAN._replace(num_domains=3, eval_batch=8)
    run = jax.jit(partial(evaluate.score, simulate.Program(method, plan, toys.VECTORIZED)))
    got = evaluate.summarize(
        run(simulate.Lane(federation, toys.POPULATION, KEYS), state, 5), ("a", "b", "c")
    )

    rows = [r[r >= 0] for r in test]
    each = [100 * hits_of(state.server, r).mean() for r in rows if len(r)]
    every = np.concatenate(rows)
    assert got["accuracy"]["mean"] == pytest.approx(np.mean(each))
    assert got["accuracy"]["weighted"] == pytest.approx(100 * hits_of(state.server, every).mean())
    assert got["accuracy"]["worst10"] == got["accuracy"]["min"] == pytest.approx(min(each))
    assert got["accuracy"]["max"] == pytest.approx(max(each))
    per_client = iter(each)
    for value, r in zip(got["accuracy"]["per_client"], rows, strict=True):
        assert value == (pytest.approx(next(per_client)) if len(r) else None)
    for k, name in enumerate("abc"):
        of_domain = every[domain[every] == k]
        assert got["domains"][name] == pytest.approx(100 * hits_of(state.server, of_domain).mean())
    world = 100 * hits_of(state.server, np.arange(400, 600)).mean()
    assert got["global"] == pytest.approx(world)
    assert got["ood"] == pytest.approx(100 * hits_of(state.server, np.arange(500, 533)).mean())
    held = [100 * hits_of(state.server, r[:9]).mean() for r in rows if len(r)]
    assert got["id"] == pytest.approx(np.mean(held))


def test_worst_tenth_of_many_clients():
    right = jnp.arange(25.0)[:, None]
    hits = evaluate.Counts(right, jnp.full((25, 1), 100.0))
    got = evaluate.summarize(evaluate.Scores(None, hits, None, None), ("all",))
    assert got["accuracy"]["worst10"] == 0.5  # the two lowest: 0 and 1
    assert "domains" not in got and "global" not in got


def test_global_of_a_personal_method_is_the_mean_over_clients():
    method = toys.make("local", toys.TASK)
    state = toys.player(method)(KEYS, 0, 3)[0]
    scores = jax.jit(partial(evaluate.score, simulate.Program(method, toys.PLAN, toys.VECTORIZED)))(
        simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS), state, 3
    )
    models = [jax.tree.map(lambda a, i=i: a[i], state.private) for i in range(toys.C)]
    expected = np.mean([100 * hits_of(w, np.arange(400, 600)).mean() for w in models])
    assert evaluate.summarize(scores, ("all",))["global"] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [parallel.sequential(), parallel.chunked(3)], ids=lambda strategy: strategy.name
)
def test_scores_do_not_depend_on_the_strategy(strategy):
    method = toys.make("ifca")
    state = simulate.init(method, KEYS, toys.C)
    args = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS), state, 0
    a, b = (
        jax.jit(partial(evaluate.score, simulate.Program(method, toys.PLAN, s)))(*args)
        for s in (strategy, toys.VECTORIZED)
    )
    toys.same(a, b)


def test_a_method_that_predicts_classes_for_logits_is_found():
    """Their argmax would be one class for the whole batch, and the accuracy nonsense."""
    plain = fedavg(toys.TASK)
    method = plain._replace(predict=lambda *args: jnp.argmax(plain.predict(*args), -1))
    program = simulate.Program(method, toys.PLAN, toys.VECTORIZED)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    state = simulate.init(method, KEYS, toys.C)
    with pytest.raises(AssertionError, match="assert_shape"):
        jax.eval_shape(partial(evaluate.score, program), lane, state, jnp.int32(0))
