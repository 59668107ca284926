"""Functions that draw the clients of a round and their shares in the server's mean.

A sampling function takes (key, server, population [C], m) and returns the ids [M] and the shares
[M] of the drawn clients; M is m unless its docstring says otherwise. With a fifth argument `losses`
it also gets the latest loss of each client [C] (config.run.sampling only).
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_lab import streams
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, checked
from fedjax_lab.types import Array, Client, PyTree


def by_size(key: Array, server: PyTree, population: Client, m: int) -> tuple[Array, Array]:
    """m clients, drawn uniformly without replacement; share n_i / sum_j n_j over the sample."""
    ids = without_replacement(key, population.n.shape[0], m)
    return ids, population.n[ids] / jnp.sum(population.n[ids])


def shuffled(key: Array, server: PyTree, population: Client, m: int) -> tuple[Array, Array]:
    """The clients of `by_size` in random order; share n_i / sum_j n_j over the sample."""
    ids = without_replacement(key, population.n.shape[0], m)
    ids = jax.random.permutation(streams.extra(key), ids)
    return ids, population.n[ids] / jnp.sum(population.n[ids])


def equal(key: Array, server: PyTree, population: Client, m: int) -> tuple[Array, Array]:
    """m clients, drawn uniformly without replacement; share 1/m."""
    return without_replacement(key, population.n.shape[0], m), jnp.full(m, 1 / m)


def evenly(sample: Callable) -> Callable:
    """A function that draws the same clients as `sample`, but gives each the same share."""
    if sample in (by_size, equal):
        return equal

    @functools.wraps(sample)
    def even(key, server, population, m):
        ids, shares = sample(key, server, population, m)
        return ids, equal_shares(shares > 0)

    return even


def is_own(sample: Callable) -> bool:
    """Whether a function that draws clients is not from this package."""
    while isinstance(sample, functools.partial):
        sample = sample.func
    return not str(getattr(sample, "__module__", "")).startswith("fedjax_lab.")


def poisson(
    key: Array, server: PyTree, population: Client, m: int, capacity: int = 0
) -> tuple[Array, Array]:
    """Poisson sampling: each client with probability m / C, independently; share 1/k for k clients.

    The result has a fixed length. Entries beyond the k drawn clients have a share of 0. If more
    than this length are drawn, a random subset of them is kept. If none is drawn, all shares are 0.

    capacity: the length of the result; 0: `room`.
    """
    count = population.n.shape[0]
    u = jax.random.uniform(key, (count,))
    lowest, ids = jax.lax.top_k(-u, min(capacity, count) or room(m, count))
    return ids, equal_shares(-lowest < m / count)


def at_least_one(share: float, count: int) -> int:
    """The number of clients that are a share of `count`: rounded down, but one if that is 0.

    A share of 0 is no client. The rounding error of the product is ignored.
    """
    return max(1, math.floor(share * count + 1e-6)) if share else 0


def equal_shares(drawn: Array) -> Array:
    """Shares [M]: 1/k for each of the k clients with drawn [M] true, 0 for the others."""
    return drawn / jnp.maximum(jnp.sum(drawn), 1)


def room(m: int, count: int) -> int:
    """The length of a Poisson sample: m plus six standard deviations, at most `count`.

    With six, the epsilon of a private run is that of unbounded samples within 0.1 percent. With
    three, as in versions up to 0.2.0, it may be three times as large.

    m: the expected number of clients. count: the number of all clients.
    """
    return min(count, m + math.ceil(6 * math.sqrt(m * max(0, 1 - m / count))))


def all_clients(key: Array, server: PyTree, population: Client, m: int) -> tuple[Array, Array]:
    """All clients, whatever m is; share n_i / sum_j n_j."""
    return jnp.arange(population.n.shape[0]), population.n / jnp.sum(population.n)


@checked("run")
def power_of_choice(
    key: Array,
    server: PyTree,
    population: Client,
    m: int,
    losses: Array,
    *,
    candidates: NotNegative[int] = 0,
) -> tuple[Array, Array]:
    """The m candidates with the highest latest losses; share 1/m.

    Cho et al., AISTATS 2022, arXiv:2010.01243: rpow-d. Candidates are drawn without replacement, in
    proportion to n_i. Those that have not yet taken part come first. A client's latest loss is that
    of the model that it got when it last took part.

    candidates: d, the number of candidates, at least m; 0: 2 m.
    """
    count = population.n.shape[0]
    if 0 < candidates < m:
        raise BadInput(f"config.run.candidates must be at least {m}, the cohort, got {candidates}")
    scores = jnp.log(population.n) + jax.random.gumbel(key, (count,))
    _, drawn = jax.lax.top_k(scores, min(candidates or 2 * m, count))
    _, highest = jax.lax.top_k(losses[drawn], m)
    return drawn[highest], jnp.full(m, 1 / m)


AT_RANDOM = (by_size, equal, shuffled)  # each client is drawn with probability m / C


def without_replacement(key: Array, count: int, m: int) -> Array:
    """m distinct numbers below `count`, with every set equally likely.

    For a small cohort of a large population this avoids sorting the population: 2 m numbers are
    drawn with replacement, and the first m distinct ones are taken. If there are fewer than m, all
    are drawn again. This favors no set, because the numbers are exchangeable.
    """
    if m == count:
        return jnp.arange(count)
    if count <= 4 * m:
        return jax.lax.top_k(jax.random.bits(key, (count,), jnp.uint32), m)[1]

    def draw(carry):
        key, now = jax.random.split(carry[0])
        numbers = jax.random.randint(now, (2 * m,), 0, count, jnp.int32)
        order = jnp.argsort(numbers, stable=True)
        repeated = jnp.zeros(2 * m, bool).at[order[1:]].set(jnp.diff(numbers[order]) == 0)
        return key, numbers, ~repeated

    start = key, jnp.zeros(2 * m, jnp.int32), jnp.zeros(2 * m, bool)
    _, numbers, new = jax.lax.while_loop(lambda carry: jnp.sum(carry[2]) < m, draw, start)
    return numbers[jnp.argsort(~new, stable=True)[:m]]
