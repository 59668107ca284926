"""Rounds of a method on the toy federation, and rounds of FedAvg to compare them with."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import naive
import toys
from naive import KEYS

from fedjax_lab import optim, tree
from fedjax_lab.simulation import evaluate, simulate
from fedjax_lab.simulation.client_work import make_work
from fedjax_lab.simulation.population import make_population
from fedjax_lab.types import Batch, Weights

FIRST_CLIENT = tree.take(toys.POPULATION, 0)
PLAIN = naive.FULL._replace(optimizer=optim.sgd(naive.LR, 0.0, naive.DECAY))


@functools.cache
def averaged(skewed=False):
    """The state and the progress of FedAvg after three rounds."""
    federation = toys.SKEWED if skewed else toys.FEDERATION
    return toys.player(toys.make("fedavg"), federation=federation)(KEYS, 0, 3)


def rounds(method, count, plan=naive.FULL, federation=toys.FEDERATION, scheduled=None):
    """The state after `count` rounds."""
    play = toys.player(method, plan=plan, federation=federation, scheduled=scheduled)
    return play(KEYS, 0, count)[0]


@functools.lru_cache(maxsize=8)
def _client_runner(function, plan):
    def run(federation, population, i, message, private):
        client = tree.take(population, i)._replace(private=private)
        held_out = federation.validation
        validation = None if held_out is None else held_out[i]
        each = federation.train[i], plan, KEYS.score
        work, _ = make_work(federation, *each, validation=validation)
        return function(message, client, work)

    return jax.jit(run)


def one_client(function, message, i, private=(), plan=naive.FULL, federation=toys.FEDERATION):
    """What a method's `local`, `tune` or `join` returns for client i; compiled once."""
    population = make_population(federation, toys.K)
    return _client_runner(function, plan)(federation, population, i, message, private)


def loss_of(method, state=None):
    """The loss and the weights with which the first client of a state begins to train."""
    caught = []

    class Work:
        def train(self, w, loss):
            caught.append((loss, w))
            return w

    state = state or method.init(KEYS.init, toys.C)
    client = FIRST_CLIENT._replace(private=tree.take(state.private, 0))
    method.round[-1].local(state.server, client, Work())
    return caught[0]


class Call(NamedTuple):
    """A call of `Work.train`."""

    loss: Callable
    weights: Weights
    options: dict


def local_work(method, message, private=(), i=0, federation=toys.SKEWED, moved=0.125):
    """The local work of client i without a compilation, with full batches.

    Returns what it uploads and keeps if each training adds `moved` to every parameter, the calls of
    `Work.train`, and the client's batch.
    """
    x, y = naive.data_of(i, federation)
    batch, calls = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y))), []

    class Work:
        optimizer = optim.sgd(naive.LR)

        def train(self, weights, loss, **options):
            calls.append(Call(loss, weights, options))
            return weights._replace(params=jax.tree.map(lambda a: a + moved, weights.params))

        def draw(self, size):
            return jax.tree.map(lambda a: a[:size], batch)

        def mean(self, fn, **_):
            return fn(batch)

        def outputs(self, fn):
            return fn(batch), batch.mask

    client = tree.take(make_population(federation, toys.K), i)._replace(private=private)
    upload, kept = method.round[-1].local(message, client, Work())
    return upload, kept, calls, batch


def different_models():
    """Random models of all clients: stacked, and as lists of arrays."""
    shape = toys.TASK.init(KEYS.init)
    models = [toys.random_weights(shape, seed) for seed in range(5, 5 + toys.C)]
    return jax.tree.map(lambda *a: jnp.stack(a), *models), [naive.weights_of(w) for w in models]


def scores(method, state, federation=toys.FEDERATION, plan=toys.PLAN, new=None):
    """The scores of a state; new: `Lane.new`."""
    lane = simulate.Lane(federation, make_population(federation, toys.K), KEYS, new=new)
    score = functools.partial(evaluate.score, simulate.Program(method, plan, toys.VECTORIZED))
    return jax.jit(score)(lane, state, 3)


def by_hand(method, count, train, federation=toys.FEDERATION):
    """The server's model after rounds in NumPy: the mean by size of train(i, w, x, y)."""
    w = naive.first_weights()
    for t in range(count):
        ids = naive.cohort(method, t)
        models = [train(i, w, *naive.data_of(i, federation)) for i in ids]
        w = naive.mean_by_size(ids, models, federation)
    return w


def averaged_by_hand(method, t, w):
    """The mean of FedAvg in NumPy, in round t and from the weights w that were sent."""
    ids = naive.cohort(method, t)
    return naive.mean_by_size(ids, [naive.sgd(w, *naive.data_of(i)) for i in ids])


def skewed_rounds(method, count, gradient_of):
    """Rounds of FedAvg in NumPy on skewed classes; clients descend gradient_of(i, w, x, y)."""

    def train(i, w, x, y):
        return naive.descend(w, lambda v: gradient_of(i, v, x, y)[1])

    return by_hand(method, count, train, toys.SKEWED)


def averages(members, ids, models, centers):
    """The mean by size in each cluster; a cluster without participants keeps its center."""
    out = []
    for k in range(len(members)):
        positions = [j for j, i in enumerate(ids) if members[k][i]]
        out.append(
            naive.mean_by_size([ids[j] for j in positions], [models[j] for j in positions])
            if positions
            else centers[k]
        )
    return out
