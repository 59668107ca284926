"""Client-level differential privacy: it bounds the influence of one client's data on the models.

  u_i     the update of client i, as one vector over all leaves of the upload      (`wire`)
  u_i'    u_i min(1, S / ||u_i||)                                                  (clipping)
  u       1/m (sum_{i drawn} u_i' + N(0, (sigma S)^2 I))                           (release)

McMahan et al., ICLR 2018, arXiv:1710.06963, with uniform weights. m is fixed: it is the expected
number of clients in a round, not the actual number. Adding a client to the population, or removing
one, thus changes m u by at most S: this is the Gaussian mechanism with noise multiplier sigma,
which `accounting` composes. The method sees only u, as the update of each of m clients. Everything
that it computes from u is therefore post-processing and costs no privacy.

Lost uploads (config.run.dropout) are missing in the sum, but m stays the same. Which uploads would
be lost in a round is drawn for each client independently of all data and of the other clients that
are drawn. Given these losses, the sum is over fewer clients with the same noise, and epsilon, which
is computed as if no upload were lost, is an upper bound. A round that loses all uploads also
releases noise.

The guarantee covers the models and everything else that the server keeps and sends. It does not
cover other measurements of a simulation, such as the training loss and scores, nor the private
state of clients. The noise is drawn in float32 by JAX's generator from the run's seed, and norms
are subject to rounding: this simulates the mechanism and does not protect real clients (Mironov,
CCS 2012).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import sampling as cohorts
from fedjax_lab import streams, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import BelowOne, NotNegative, OneOf, Positive, Share, checked
from fedjax_lab.transforms import accounting, server_state, uplink
from fedjax_lab.transforms import cohort as of_cohort
from fedjax_lab.transforms.guarantee import Guarantee, Setup, noise_multiplier
from fedjax_lab.transforms.server_state import Server
from fedjax_lab.types import Array, Client, Exchange, Method, NoCounts, PyTree, Task, Work

NOBODY = jnp.iinfo(jnp.int32).max  # an id that no client has
NOISE = 5  # number of the random stream of a client's noise among the streams of an upload


class Released(NamedTuple):
    """The server's state between the releases of updates."""

    key: Array
    releases: Array  # [] int32, the number of releases so far
    full: Array  # [] int32, releases with a full cohort, from which clients may have been left out
    clip: Array  # [] float32, S of the next release


Release = Callable[[Array, list[Array], Array, Array], tuple[list[Array], Array]]
# (key, updates [M, ...], whether each client was drawn [M], S) -> (u, the next S)


@checked("privacy")
def central(
    method: Method,
    task: Task,
    setup: Setup,
    *,
    clip: Positive[float] | Literal["inf"] = 1.0,
    noise: NotNegative[float] = 0.0,
    epsilon: NotNegative[float] | Literal["inf"] = 0.0,
    delta: BelowOne = 0.0,
    sampling: Annotated[str, OneOf(accounting.NEIGHBORS)] = "poisson",
    capacity: NotNegative[int] = 0,
) -> Method:
    """The server adds noise to the mean of the clipped updates.

    With an infinite clip, no noise and sampling=fixed this is the method itself with equal shares.

    setup: the run, with m, the expected number of clients in a round.
    clip: S, the largest norm of a client's update over all its leaves; larger updates are scaled
        down to it.
    noise: sigma, the standard deviation of the noise in the sum, relative to S; 0: the smallest one
        for the given epsilon.
    epsilon: the epsilon of the run after its last round, given instead of noise; inf: no noise.
    delta: the delta of the guarantee; 0: C^-1.1 for C clients.
    sampling: poisson, each client takes part in a round with probability m / C; or fixed, m of the
        C clients take part.
    capacity: the largest number of clients in a round under Poisson sampling; if more are drawn, a
        random subset takes part. 0: m plus six standard deviations.
    """
    first, cohort = float(clip), setup.cohort
    method = _guaranteed(method, setup, noise, float(epsilon), delta, sampling, capacity)
    sigma = noise_multiplier(method.extra.guarantee, first)
    if sigma == 0 and first == math.inf and sampling == "fixed":
        return method

    def release(key, updates, drawn, clip):
        mean = clipped_mean(updates, drawn, clip, cohort)
        return with_noise(mean, key, sigma * clip / cohort) if sigma != 0 else mean, clip

    return _released(method, release, first, cohort)


@checked("privacy")
def adaptive(
    method: Method,
    task: Task,
    setup: Setup,
    *,
    clip: Positive[float] = 0.1,
    noise: NotNegative[float] = 0.0,
    epsilon: NotNegative[float] | Literal["inf"] = 0.0,
    delta: BelowOne = 0.0,
    quantile: Share = 0.5,
    clip_lr: NotNegative[float] = 0.2,
    count_noise: Positive[float] = 0.05,
    sampling: Annotated[str, OneOf(accounting.NEIGHBORS)] = "poisson",
    capacity: NotNegative[int] = 0,
) -> Method:
    """The same mechanism as `central`, with an S that follows a quantile of the updates' norms.

    Andrew et al., NeurIPS 2021, arXiv:1905.03871, Algorithm 1: with b_i = 1 where ||u_i|| <= S,
    S <- S exp(-eta_C (b - gamma)), b = 1/2 + 1/m (sum_i (b_i - 1/2) + N(0, sigma_b^2)). The noise
    of u is larger than in `central`, so that both releases of a round together have the privacy
    cost of one release with sigma.

    clip: S in the first round.
    noise: sigma, the noise multiplier of both releases of a round together; 0: the smallest one for
        the given epsilon.
    epsilon: the epsilon of the run after its last round, given instead of noise; inf: no noise.
    delta: the delta of the guarantee; 0: C^-1.1 for C clients.
    quantile: gamma, the target share of updates that are not clipped.
    clip_lr: eta_C, the learning rate of S.
    count_noise: sigma_b / m, the standard deviation of the noise in the measured share of updates
        that are not clipped.
    sampling: poisson or fixed, as in `central`.
    capacity: the largest number of clients in a round under Poisson sampling; 0: m plus six
        standard deviations.
    """
    clip, cohort = float(clip), setup.cohort
    method = _guaranteed(method, setup, noise, float(epsilon), delta, sampling, capacity)
    of_both = noise_multiplier(method.extra.guarantee, clip)
    sigma = noise_beside_count(of_both, count_noise * cohort)

    def release(key, updates, drawn, clip):
        mean = clipped_mean(updates, drawn, clip, cohort)
        short = jnp.sum(jnp.where(drawn, (norms(updates) <= clip) - 0.5, 0)) / cohort
        b = 0.5 + short + count_noise * jax.random.normal(streams.extra(key, len(mean)))
        after = clip * jnp.exp(-clip_lr * (b - quantile))
        return with_noise(mean, key, sigma * clip / cohort), after

    return _released(method, release, clip, cohort)


@checked("privacy")
def local(
    method: Method,
    task: Task,
    setup: Setup,
    *,
    clip: Positive[float] | Literal["inf"] = 1.0,
    noise: NotNegative[float] = 0.0,
    epsilon: NotNegative[float] | Literal["inf"] = 0.0,
    delta: BelowOne = 0.0,
) -> Method:
    """Each client clips its update and adds noise to it before sending it.

    The clients do not have to trust the server. The guarantee is for the uploads of a client, for
    any two data sets that it may have: their updates differ by at most 2 S. The weights in the mean
    are uniform, because a client does not reveal its number of examples. Epsilon after t rounds is
    that of a client that has taken part in all of them, because the server knows the participants.

    clip: S, the largest norm of a client's update over all its leaves; larger updates are scaled
        down to it.
    noise: sigma, the standard deviation of the noise in each update, relative to S; 0: the smallest
        one for the given epsilon.
    epsilon: the epsilon of a client after the last round, given instead of noise; inf: no noise.
    delta: the delta of the guarantee; 0: C^-1.1 for C clients.
    """
    largest = float(clip)
    of_cohort.check_common(method)
    run = accounting.Run(1, 1, "fixed", per_round=len(method.round))
    words = "any two sets of data that a client may have"
    guarantee = accounting.promise(run, setup, noise, float(epsilon), delta, words)
    sigma = noise_multiplier(guarantee, largest)
    if guarantee is None and math.isinf(largest):
        return method

    def change(update, client, key):
        one, drawn = jax.tree.map(lambda u: u[None], update), jnp.ones(1, bool)
        clipped = clipped_mean(one, drawn, largest, 1)
        return with_noise(clipped, streams.extra(key, NOISE), sigma * largest)

    method = _hide_counts(_all_protected(method))
    return uplink.changed(method, change).having(guarantee=guarantee)


# The mechanism.


def norms(updates: list[Array]) -> Array:
    """Returns the norms ||u_i|| [M], in float32."""
    return jnp.sqrt(jax.vmap(tree.sq_norm)([u.astype(jnp.float32) for u in updates]))


def clipped_mean(
    updates: list[Array], drawn: Array, clip: float | Array, cohort: int
) -> list[Array]:
    """Returns 1/m sum_{i drawn} u_i min(1, S / ||u_i||), in float32.

    An update counts as 0 if it is not finite, or if its norm is too large for float32.

    drawn: [M] bool, whether each client was drawn.
    clip: S.
    cohort: m.
    """
    length = norms(updates)
    counts = drawn & jnp.isfinite(length)
    factor = jnp.minimum(1, clip / jnp.maximum(length, jnp.finfo(jnp.float32).tiny))
    finite = tree.where(counts, updates, tree.zeros(updates))
    return tree.mix(jnp.where(counts, factor, 0) / cohort, [u.astype(jnp.float32) for u in finite])


def with_noise(update: list[Array], key: Array, std: float | Array) -> list[Array]:
    """Adds Gaussian noise of standard deviation `std`; leaf j uses the extra random stream j."""
    return [
        u + std * jax.random.normal(streams.extra(key, j), u.shape, jnp.float32)
        for j, u in enumerate(update)
    ]


def noise_beside_count(noise: float, count_noise: float) -> float:
    """Returns z_Delta = (z^-2 - (2 sigma_b)^-2)^-1/2, Theorem 1 of Andrew et al.

    Raises BadInput where sigma_b is too small for z.

    noise: z, the noise multiplier of both releases together.
    count_noise: sigma_b.
    """
    if noise == 0:
        return 0.0
    left = noise**-2 - (2 * count_noise) ** -2
    if left <= 0:
        raise BadInput(
            f"config.privacy.count_noise is too low for the noise multiplier {noise:.6g}; it must"
            " be above the noise multiplier / (2 config.run.cohort)"
        )
    return left**-0.5


# How a method gets the released update.


def _released(method: Method, release: Release, clip: float, cohort: int) -> Method:
    def first(key):
        zero = jnp.int32(0)
        largest = min(clip, float(jnp.finfo(jnp.float32).max))  # a state must be finite
        return Released(streams.noise(key), zero, zero, jnp.float32(largest))

    def listen(exchange, server, uploads, clients):
        kept, drawn = server.extra, (clients.weight > 0) & clients.arrived
        updates = jax.vmap(partial(_updates, exchange, server.base))(clients.id, uploads)
        key = jax.random.fold_in(kept.key, kept.releases)
        mean, after = release(key, updates, drawn, kept.clip)
        upload = _upload(exchange, server.base, tree.take(tree.zeros(uploads), 0), mean)
        uploads = tree.repeat(upload, cohort)
        base = exchange.aggregate(server.base, uploads, crowd(clients, cohort))
        is_full = jnp.all(drawn | ~clients.arrived)  # a lost client may have been drawn
        full = kept.full + (len(drawn) > cohort) * is_full
        return Server(base, Released(kept.key, kept.releases + 1, full, after))

    def recorded(kept):
        return {"full_cohorts": kept.full, "clip": kept.clip}

    released = server_state.with_state(_all_protected(method), first, listen, recorded)
    return released.having(private_sum=True)


def check_separate(method: Method, guarantee: Guarantee | None) -> None:
    """Raises BadInput if one client's data would change several of the updates that are clipped.

    The guarantee of a noisy sum assumes that they change only one. Without a guarantee there is no
    check.
    """
    if guarantee is not None and any(of_cohort.parts(exchange)[1] for exchange in method.round):
        raise BadInput(
            "its attackers compute their updates from those of other clients, so that one client's"
            " data change several updates and epsilon would be too low; choose another attack,"
            " config.privacy.name=local, or no noise (config.privacy.epsilon=inf)"
        )


def crowd(clients: Client, count: int) -> Client:
    """Returns `count` anonymous clients, which reveal nothing about the actual `clients`."""
    some = tree.take(clients._replace(attacks=None), jnp.zeros(count, jnp.int32))
    arrived = jnp.ones(count, bool)
    return _without_data(some._replace(arrived=arrived))._replace(
        id=jnp.full(count, NOBODY), weight=arrived / count, private=tree.zeros(some.private)
    )


def _without_data(clients: Client) -> Client:
    """The clients as if each had one example, spread over all classes; a lost client has none."""
    n, counts = clients.arrived.astype(clients.n.dtype), clients.label_count
    if not isinstance(counts, NoCounts):
        classes = counts.shape[1]
        counts = jnp.tile(n[:, None] / classes, classes)
    return clients._replace(n=n, mean_n=jnp.ones_like(n), label_count=counts)


def _hide_counts(method: Method) -> Method:
    """The method whose server learns the uploads, but not the clients' numbers of examples."""

    def listen(exchange, server, uploads, clients):
        return exchange.aggregate(server, uploads, _without_data(clients))

    each = (of_cohort.with_listener(exchange, listen) for exchange in method.round)
    return method._replace(sample=cohorts.evenly(method.sample), round=tuple(each))


def _alone(client: Client) -> Client:
    """The client without values that depend on other clients: its share and the mean number."""
    return client._replace(weight=jnp.ones_like(client.weight), mean_n=client.n)


def _updates(exchange, server, id, upload):
    return wire.updates(wire.references(exchange, exchange.send(server, id), id, upload), upload)


def _upload(exchange, server, empty, update):
    """The upload with this update."""
    id = jnp.int32(NOBODY)
    references = wire.references(exchange, exchange.send(server, id), id, empty)
    return wire.with_updates(references, empty, update)


def _all_protected(method: Method) -> Method:
    """The method whose clients learn about each other only from the server's messages.

    Its tracing raises BadInput if the clients upload values that are not updates.
    """

    def local(exchange: Exchange, message: PyTree, client: Client, work: Work):
        upload, private = exchange.local(message, _alone(client), work)
        leaves = jax.tree.leaves(wire.references(exchange, message, client.id, upload))
        if any(leaf is wire.KEPT for leaf in leaves):
            raise BadInput(
                "its clients also upload counts or running statistics (of BatchNorm, for example),"
                " which are not protected; a model without BatchNorm has none"
            )
        return upload, private

    each = (exchange._replace(local=partial(local, exchange)) for exchange in method.round)
    return method._replace(round=tuple(each))


def _guaranteed(method, setup, noise, epsilon, delta, sampling, capacity) -> Method:
    """The method with its guarantee, and with the sampling that the accounting assumes.

    Raises BadInput if it cannot be protected or sampled.
    """
    of_cohort.check_common(method)
    if 0 < capacity < setup.cohort:
        raise BadInput(
            f"config.privacy.capacity must be at least config.run.cohort={setup.cohort}, got"
            f" {capacity}"
        )
    room = capacity or cohorts.room(setup.cohort, setup.num_clients)
    run = accounting.Run(setup.num_clients, setup.cohort, sampling, room, len(method.round))
    guarantee = accounting.promise(run, setup, noise, epsilon, delta)
    check_separate(method, guarantee)
    is_fixed, poisson = sampling == "fixed", partial(cohorts.poisson, capacity=room)
    method = method._replace(sample=cohorts.equal if is_fixed else poisson)
    return method.having(guarantee=guarantee, empty_places=not is_fixed)
