"""Attacks by clients that try to make training fail. `Client.attacks` says which clients attack.

u_i is the update that client i would have sent, as one vector over all leaves that are updates
(`wire`). Running statistics, counts and ids are sent unchanged.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import streams, tree
from fedjax_lab.ranges import NotNegative, Positive, checked
from fedjax_lab.transforms import cohort, uplink
from fedjax_lab.transforms.aggregators import mean_of, squared_distances
from fedjax_lab.transforms.cohort import Updates
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, Output, PyTree, Task, Work

Knowledge = Literal["all", "own"]  # the honest clients' updates of a round, or the attackers' own
Direction = Literal["std", "unit", "sign"]
NOISE = 3  # number of the attackers' random stream among the streams of an upload


@checked("attack")
def sign_flip(method: Method, task: Task, *, factor: Positive[float] = 1.0) -> Method:
    """Each attacker sends -factor u_i (Li et al., AAAI 2019, arXiv:1811.03761, "sign-flipping").

    factor: the norm of the update that an attacker sends, relative to its honest update.
    """
    return by_each(method, lambda update, key: optax.tree.scale(-factor, update))


@checked("attack")
def gaussian(method: Method, task: Task, *, std: Positive[float] = 1.0) -> Method:
    """Each attacker sends noise, N(0, std^2) in each coordinate (Blanchard et al., NeurIPS 2017).

    std: the standard deviation of the noise; 200 in the paper, whose clients send gradients.
    """

    def noise(update, key):
        keys = jax.random.split(key, len(update))
        return [
            std * jax.random.normal(k, u.shape, u.dtype) for k, u in zip(keys, update, strict=True)
        ]

    return by_each(method, noise)


@checked("attack")
def inner_product(
    method: Method, task: Task, *, epsilon: Positive[float] = 0.5, knowledge: Knowledge = "all"
) -> Method:
    """All attackers send minus epsilon times the mean of the honest updates.

    Inner-product manipulation (Xie et al., UAI 2019, arXiv:1903.03936).

    epsilon: the norm of the update that an attacker sends, relative to the mean of honest updates.
    knowledge: of which updates the attackers know the mean: all, those of the honest clients in the
        round; own, those that the attackers would send if they were honest.
    """

    def crafted(updates, cohort):
        return optax.tree.scale(-epsilon, mean_of(updates, known(cohort, knowledge)))

    return by_all(method, crafted)


@checked("attack")
def little_is_enough(
    method: Method,
    task: Task,
    *,
    z: NotNegative[float] = 0.0,
    knowledge: Knowledge = "own",
    up: bool = False,
) -> Method:
    """All attackers send mu - z sigma in each coordinate, a small shift of honest updates.

    Baruch et al., NeurIPS 2019, arXiv:1902.06156, the attack that prevents convergence. mu and
    sigma are the mean and the standard deviation of the honest updates that the attackers know, so
    that a single attacker who only knows its own does no harm.

    z: the shift in standard deviations; 0: the paper's choice, the largest shift with which the
        attackers stay hidden among the honest clients of the round.
    knowledge: of which updates mu and sigma are: own, those that the attackers would send if they
        were honest, as in the paper; all, those of the honest clients in the round.
    up: whether they add the shift to the update, which is what the authors' code does: it subtracts
        it from gradients.
    """

    def crafted(updates, cohort):
        mu, sigma = moments(updates, known(cohort, knowledge))
        attackers = jnp.sum(cohort.arrived & cohort.attacks)
        shift = z or hidden(jnp.sum(cohort.arrived), attackers)
        return tree.add(mu, sigma, shift if up else -shift)

    return by_all(method, crafted)


@checked("attack")
def min_max(
    method: Method, task: Task, *, knowledge: Knowledge = "all", direction: Direction = "std"
) -> Method:
    """All attackers send mu + gamma p, no farther from any update than two updates are apart.

    Shejwalkar and Houmansadr, NDSS 2021, doi:10.14722/ndss.2021.24498. mu is the mean of the honest
    updates u_i that the attackers know. gamma is the largest factor with max_i ||mu + gamma p -
    u_i|| <= max_ij ||u_i - u_j||; it is computed exactly, where the paper searches for it.

    knowledge: which updates the attackers know: all, those of the honest clients in the round; own,
        those that the attackers would send if they were honest.
    direction: p: std, minus the standard deviation of each coordinate; unit, -mu / ||mu||; sign,
        minus the sign of each coordinate of mu.
    """

    def largest(which, a, b, c, apart):  # ||mu + gamma p - u_i||^2 = a gamma^2 + 2 b_i gamma + c_i
        roots = jnp.sqrt(jnp.maximum(b**2 + a * (jnp.max(apart) - c), 0)) - b
        return jnp.min(jnp.where(which, roots, jnp.inf)) / a

    return by_all(method, partial(shifted, largest, knowledge, direction))


@checked("attack")
def min_sum(
    method: Method, task: Task, *, knowledge: Knowledge = "all", direction: Direction = "std"
) -> Method:
    """All attackers send mu + gamma p, whose squared distances to the updates have a bounded sum.

    Shejwalkar and Houmansadr, NDSS 2021, doi:10.14722/ndss.2021.24498. gamma is the largest factor
    with sum_i ||mu + gamma p - u_i||^2 <= max_i sum_j ||u_i - u_j||^2; the rest is as in `min_max`.

    knowledge: which updates the attackers know: all, those of the honest clients in the round; own,
        those that the attackers would send if they were honest.
    direction: p: std, minus the standard deviation of each coordinate; unit, -mu / ||mu||; sign,
        minus the sign of each coordinate of mu.
    """

    def largest(which, a, b, c, apart):  # the sum of all b_i is 0
        room = jnp.max(jnp.sum(apart, 1)) - jnp.sum(c)
        return jnp.sqrt(jnp.maximum(room, 0) / (a * jnp.sum(which)))

    return by_all(method, partial(shifted, largest, knowledge, direction))


# What attackers who cooperate know, and what they compute from it.


def known(cohort: Client, knowledge: Knowledge) -> Array:
    """Which updates of a round the attackers know, [M] bool."""
    return cohort.arrived & (cohort.attacks if knowledge == "own" else ~cohort.attacks)


def moments(updates: Updates, which: Array) -> tuple[Updates, Updates]:
    """The mean and the standard deviation of each coordinate over the chosen updates."""
    mu = mean_of(updates, which)
    squares = [(u - a) ** 2 for u, a in zip(updates, mu, strict=True)]
    return mu, [jnp.sqrt(variance) for variance in mean_of(squares, which)]


def shifted(
    largest: Callable[..., Array],
    knowledge: Knowledge,
    direction: Direction,
    updates: Updates,
    cohort: Client,
) -> Updates:
    """Returns mu + gamma p, where mu is the mean of the known updates.

    largest: (which updates are known [M], ||p||^2, <p, mu - u_i> [M], ||mu - u_i||^2 [M],
        ||u_i - u_j||^2 [M, M]) -> gamma; the entries of updates that are not known are 0.
    """
    which = known(cohort, knowledge)
    mu, sigma = moments(updates, which)
    norm = jnp.maximum(jnp.sqrt(tree.sq_norm(mu)), 1e-30)
    p = {
        "std": lambda: optax.tree.scale(-1, sigma),
        "unit": lambda: optax.tree.scale(-1 / norm, mu),
        "sign": lambda: [-jnp.sign(a) for a in mu],
    }[direction]()
    beyond = [a - u for a, u in zip(mu, updates, strict=True)]
    beyond = tree.where(which, beyond, tree.zeros(beyond))
    along = jax.vmap(tree.dot, (None, 0))(p, beyond)
    apart = jnp.where(which[:, None] & which, squared_distances(beyond), 0)
    size = tree.sq_norm(p)
    gamma = largest(which, size, along, jax.vmap(tree.sq_norm)(beyond), apart)
    return tree.add(mu, p, jnp.where(size > 0, gamma, 0))


def hidden(n: Array, m: Array) -> Array:
    """Returns z_max for m attackers among n clients.

    Phi(z_max) = (n - m - s) / (n - m), where s = floor(n/2 + 1) - m is the number of honest clients
    that the attackers need for a majority: the first lines of the algorithm of Baruch et al. z_max
    is never below 0. Where the attackers have the majority alone, Phi(z_max) is 0.999.
    """
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / jnp.maximum(n - m, 1)
    return jax.scipy.stats.norm.ppf(jnp.clip(share, 0.5, 0.999))


def label_flip(method: Method, task: Task) -> Method:
    """Each attacker trains on the label K - 1 - y instead of y, for K classes.

    Fang et al., USENIX Security 2020, arXiv:1911.11815.
    """

    def flip(client, batch):
        return batch._replace(y=task.num_classes - 1 - batch.y)

    def counts(label_count):
        return label_count[::-1]

    return on_data(method, flip, counts)


# How an attack is applied to the attackers alone.


def by_each(method: Method, attack: Callable[[list[Array], Array], list[Array]]) -> Method:
    """The method whose attackers send changed updates, each from its own update.

    attack: (update, key) -> the update that the attacker sends.
    """

    def change(update, client, key):
        if client.attacks is None:
            return update
        return tree.where(client.attacks, attack(update, streams.extra(key, NOISE)), update)

    return uplink.changed(method, change)


def by_all(method: Method, attack: Callable[[Updates, Client], list[Array]]) -> Method:
    """The method whose attackers all send the same update in a round.

    attack: (updates of the round, cohort) -> the update that every attacker sends.
    """

    def change(updates, cohort):
        if cohort.attacks is None:
            return updates
        crafted = tree.repeat(attack(updates, cohort), len(cohort.id))
        return tree.where(cohort.attacks, crafted, updates)

    return cohort.changed(method, change)


def on_data(
    method: Method, change: Callable[[Client, Batch], Batch], counts: Callable[[Array], Array]
) -> Method:
    """The method whose attackers work with changed examples.

    change: (client, batch) -> a batch of the same shapes, in which each example depends only on
        the same example of the original batch.
    counts: the number of a client's examples of each class [K] -> these numbers after the change.
    """

    def local(exchange: Exchange, message: PyTree, client: Client, work: Work):
        if client.attacks is None:
            return exchange.local(message, client, work)
        label_count = jnp.where(client.attacks, counts(client.label_count), client.label_count)
        seen = with_examples(work, lambda b: tree.where(client.attacks, change(client, b), b))
        return exchange.local(message, client._replace(label_count=label_count), seen)

    each = (e._replace(local=partial(local, e)) for e in method.round)
    return method._replace(round=tuple(each))


def with_loss(work: Work, changed: Callable[..., tuple[Array, Output]]) -> Work:
    """The `Work` of a client that trains with changed losses.

    changed: (loss, weights, batch, key) -> the value and the output of `loss`.
    """

    def train(weights, loss, **options):
        def changed_loss(w, batch, key=None):
            return changed(loss, w, batch, key)

        return work.train(weights, changed_loss, **options)

    return work._replace(train=train)


def with_examples(work: Work, change: Callable[[Batch], Batch]) -> Work:
    """The `Work` of a client whose examples are changed by `change`."""

    def train(weights, loss, *, references=None, **options):
        def changed_loss(w, batch, key=None):
            return loss(w, change(batch), key)

        of_examples = references and (lambda batch: references(change(batch)))
        return work.train(weights, changed_loss, references=of_examples, **options)

    def mean(fn, **options):
        return work.mean(lambda batch: fn(change(batch)), **options)

    def outputs(fn, **options):
        return work.outputs(lambda batch: fn(change(batch)), **options)

    def draw(size):
        return change(work.draw(size))

    return work._replace(train=train, mean=mean, draw=draw, outputs=outputs)
