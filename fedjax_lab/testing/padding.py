"""The check that the padding of short batches changes nothing, for a method of one stage."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import streams
from fedjax_lab.engine import parallel
from fedjax_lab.simulation import evaluate, simulate
from fedjax_lab.simulation.population import new_on_host
from fedjax_lab.simulation.simulate import Lane, Program
from fedjax_lab.testing.failure import check_same
from fedjax_lab.testing.toy import C, D, K, toy_federation
from fedjax_lab.testing.trial import Trial, keys_of, pooled, quickly
from fedjax_lab.types import Federation, Method

ROUNDS = 2
DEPENDS = (
    "the numbers depend on the padding of short batches; leave out the rows where `batch.mask` is"
    " 0, as `losses.masked_mean(values, batch.mask)` does"
)
DEPENDS_SCORED = (
    "the scores depend on the padding of short batches; in `predict`, `tune` and `join` nothing may"
    " depend on the rows of a batch that are padding: `batch.mask` is 0 there"
)


def check_padding(trial: Trial) -> None:
    """Checks that neither the number nor the content of padded rows changes states and scores."""
    few, many = (player(trial, times)(trial.keys) for times in (1, 2))
    check_equal(few, many)


def check_equal(few: Any, many: Any) -> None:
    """Checks that `player` returns the same for 1 and for 2."""
    check_same(many[0], few[0], DEPENDS, rtol=5e-4, atol=5e-5)
    check_same(many[1], few[1], DEPENDS_SCORED, rtol=5e-4, atol=5e-5)


def padded(times: int) -> Federation:
    """The toy federation with an example as padding that depends on `times`."""
    federation = toy_federation()
    x = jnp.full((1, D), 5.0 if times % 2 else -5.0)
    return federation._replace(  # padding is row -1, the last one of the pool
        x=jnp.concatenate([federation.x, x]),
        y=jnp.append(federation.y, jnp.int32(times % K)),
        domain=jnp.append(federation.domain, 0),
    )


def player(trial: Trial, times: int) -> Callable[[streams.Keys], Any]:
    """Makes a function: the random streams of both seeds -> their states and losses of scores.

    times: how many times the examples of the largest client fit into a batch.
    """
    method = trial.method
    federation, population, plan = pooled(method, padded(times))
    plan = plan._replace(batch_size=times * federation.train.longest, eval_batch=25 - 9 * times)
    program = Program(method, plan, parallel.vectorized())
    to_train, to_score = Lane(federation, population, keys_of(0)), _to_score(method, times)

    def play_seed(keys, to_train, to_score):
        state = simulate.init(method, keys, C)
        lane, sums = to_train._replace(keys=keys), simulate.no_progress()
        state, _ = simulate.play(program, lane, state, sums, 0, ROUNDS)
        scored = program._replace(plan=plan._replace(cohort=C))
        scores = evaluate.score(scored, to_score._replace(keys=keys), state, ROUNDS)
        counts = {name: of for name, of in scores._asdict().items() if of is not None}
        return state, {
            name: optax.tree.scale(1 / 20, of.measured["loss"]) for name, of in counts.items()
        }

    play = quickly(jax.jit(jax.vmap(play_seed, (0, None, None))), trial.keys, to_train, to_score)
    return lambda keys: play(keys, to_train, to_score)


def _to_score(method: Method, times: int) -> Lane:
    """The lane with which the method is scored; new clients join if they use data of their own."""
    federation, population, _ = pooled(method.having(pooled=False), padded(times))
    if method.join is not None and not method.validation:
        federation = federation._replace(new_train=federation.train, new_test=federation.test)
    return Lane(federation, population, keys_of(0), new=new_on_host(federation, K))
