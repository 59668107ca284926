"""Small hypernetworks, rounds of their methods, and runs on four domains of images."""

import functools

import jax
import naive
import numpy as np
import toys

from fedjax_lab import tree
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.models.hypernetwork import generate
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.population import make_population

KEY = jax.random.key(3)


PARAMS = toys.TASK.init(KEY).params


leaky = functools.partial(jax.nn.leaky_relu, negative_slope=0.01)


ALL_CLIENTS = naive.FULL._replace(cohort=toys.C)


def clients(M=4, inputs=2):
    """Returns random embeddings and pseudo-gradients of M clients."""
    nu = jax.random.normal(jax.random.fold_in(KEY, 1), (M, inputs))
    leaves, shape = jax.tree.flatten(PARAMS)
    keys = jax.random.split(jax.random.fold_in(KEY, 2), len(leaves))
    delta = [jax.random.normal(k, (M, *a.shape)) for k, a in zip(keys, leaves, strict=True)]
    return nu, jax.tree.unflatten(shape, delta)


def gradients(theta, nu, delta, with_nu=True):
    """Returns the gradients g_i, computed one by one and flattened: [M, all]."""
    rows = []
    for i in range(len(nu)):
        _, pull = jax.vjp(lambda t, n: generate(t, n[i], leaky), theta, nu)  # noqa: B023
        by_theta, by_nu = pull(tree.take(delta, i))
        parts = [by_theta, by_nu] if with_nu else [by_theta]
        rows.append(np.concatenate([np.ravel(a) for a in jax.tree.leaves(parts)]))
    return np.array(rows, float)


def first(method):
    return simulate.init(method, naive.KEYS, toys.C)


def one_round(method, state, t=0, plan=naive.FULL):
    return toys.player(method, plan=plan)(naive.KEYS, t, 1, state)[0]


def memory_of_a_round(method, count, strategy=toys.VECTORIZED):
    """XLA's analysis of the memory of a round with `count` clients, all of which take part."""
    rows = toys.as_rows(np.tile(toys.FEDERATION.train, (-(-count // toys.C), 1))[:count])
    federation = toys.FEDERATION._replace(train=rows)
    lane = simulate.Lane(federation, make_population(federation, toys.K), naive.KEYS)
    program = simulate.Program(method, toys.PLAN._replace(cohort=count), strategy)
    state = jax.eval_shape(lambda: simulate.init(method, naive.KEYS, count))
    play = jax.jit(functools.partial(simulate.play_round, program))
    return play.lower(lane, state, 0).compile().memory_analysis()


def adam_step(g, x, m, v, count, lr, decay):
    g = g + decay * x
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = lr * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
    return x - step, m, v


def flat(x):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(x)]).astype(float)


def setting(path, method, seeds=(0,), rounds=3, **data):
    config = {
        "data": {"name": "arrays", "path": str(path), "unseen": "b", **data},
        "partition": {"name": "domains_per_client", "num_clients": 3, "validation": 0.1},
        "model": {"name": "mlp", "width": 8},
        "method": method if isinstance(method, dict) else {"name": method},
        "local": {"optimizer": "adam", "lr": 1e-2},
        "run": {"rounds": rounds, "eval_every": 1},
    }
    return experiment.build(resolve(config), list(seeds))
