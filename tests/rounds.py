"""Rounds of a method on the toy federation, and rounds of FedAvg to compare them with."""

import functools

import jax
import naive
import toys

from fedjax_lab import evaluate, optim, simulate, tree
from fedjax_lab.local import make_work

KEYS = naive.KEYS


PLAIN = naive.FULL._replace(optimizer=optim.sgd(naive.LR, 0.0, naive.DECAY))


@functools.cache
def averaged(skewed=False):
    """The state and the progress of FedAvg after three rounds."""
    federation = toys.SKEWED if skewed else toys.FEDERATION
    return toys.player(toys.make("fedavg"), federation=federation)(KEYS, 0, 3)


def check_averages(method):
    """Asserts that the server state and the progress are those of FedAvg up to rounding."""
    state, sums = toys.player(method)(KEYS, 0, 3)
    expected, expected_sums = averaged()
    toys.close((state.server, sums), (expected.server, expected_sums), rtol=1e-5, atol=1e-7)


def rounds(method, count, plan=naive.FULL, federation=toys.FEDERATION, scheduled=None):
    """The state after `count` rounds."""
    play = toys.player(method, plan=plan, federation=federation, scheduled=scheduled)
    return play(KEYS, 0, count)[0]


def one_client(function, message, i, private=(), plan=naive.FULL, federation=toys.FEDERATION):
    """What a method's `local`, `tune` or `join` returns for client i, compiled."""
    client = tree.take(toys.POPULATION, i)._replace(private=private)

    @jax.jit
    def run(message, client):
        validation = None if federation.validation is None else federation.validation[i]
        rows = federation.train[i]
        work, _ = make_work(federation, rows, plan, KEYS.score, validation=validation)
        return function(message, client, work)

    return run(message, client)


def scores(method, state, federation=toys.FEDERATION, plan=toys.PLAN, new=None):
    """The scores of a state; new: `Lane.new`."""
    lane = simulate.Lane(federation, simulate.population(federation, toys.K), KEYS, new=new)
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
