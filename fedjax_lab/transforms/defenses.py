"""Rules that weigh the clients of a round, or the coordinates of their updates, against attacks.

m of the M clients of the round have sent an update. u_i is the update of client i, as one vector
over all leaves that are updates (`wire`). Lost uploads, and updates whose norm is not a finite
number in float32, have the weight 0. All rules count each client once, except robust_lr, after
which the method takes its own mean.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, Positive, PositiveShare, checked
from fedjax_lab.transforms import cohort, counted, rehearsal
from fedjax_lab.transforms.aggregators import Minority, clipped
from fedjax_lab.transforms.cohort import Updates
from fedjax_lab.types import Array, Client, Method, Task, Weights

NOISE = 5  # number of FLAME's random stream among those of the server in an exchange


@checked("aggregator")
def dnc(
    method: Method,
    task: Task,
    *,
    attackers: Minority = 0.2,
    iterations: Positive[int] = 1,
    coordinates: Positive[int] = 10_000,
    filtered: Positive[float] = 1.0,
) -> Method:
    """The mean of the updates that lie close to the mean along their main direction.

    Divide and conquer (Shejwalkar and Houmansadr, NDSS 2021, doi:10.14722/ndss.2021.24498). An
    iteration takes random coordinates, and leaves out the updates with the largest <u_i - mu, v>^2,
    where v is the first right singular vector of the u_i - mu. An update that no iteration leaves
    out enters the mean.

    attackers: the share of a round's clients that may be attackers, f of M, rounded down but
        at least 1.
    iterations: niters, the number of iterations.
    coordinates: b, how many coordinates an iteration takes at most.
    filtered: c: an iteration leaves out c f updates, rounded down.
    """
    weigh = partial(
        spectral,
        attackers=attackers,
        iterations=iterations,
        coordinates=coordinates,
        filtered=filtered,
    )
    return cohort.weighed(method, weigh)


@checked("aggregator")
def flame(method: Method, task: Task, *, noise: NotNegative[float] = 0.001) -> Method:
    """The mean of the majority's updates, with clipped norms and with noise.

    FLAME (Nguyen et al., USENIX Security 2022, arXiv:2101.02281). The majority is the cluster that
    HDBSCAN finds with more than half of the clients, by cosine distances between updates (of
    models in the paper). Norms are clipped to their median over all clients, S. Each number of the
    mean gets noise N(0, (noise S)^2).

    noise: lambda, the standard deviation of the noise relative to S.
    """

    def reduce(updates, clients):
        usable = clients.arrived & finite(updates)
        norms = jnp.where(usable, norms_of(updates), jnp.inf)
        S = jnp.sort(norms)[(jnp.maximum(jnp.sum(usable), 1) - 1) // 2]
        S = jnp.where(jnp.isfinite(S), S, 0)
        near = jax.vmap(partial(clipped, S))(updates)
        mean = cohort.weighted(majority(updates, clients), near)
        keys = jax.random.split(streams.extra(clients.key[0], NOISE), len(mean))
        return [
            a + noise * S * jax.random.normal(k, a.shape) for a, k in zip(mean, keys, strict=True)
        ]

    return cohort.replaced(method, reduce, majority)


@checked("aggregator")
def robust_lr(method: Method, task: Task, *, agreement: PositiveShare = 0.4) -> Method:
    """Turns the mean around in coordinates in which too few clients agree on the sign.

    Robust learning rate (Ozdayi et al., AAAI 2021, arXiv:2007.03767): where |sum_i sgn(u_i)| is
    below theta = agreement m, the learning rate of the server becomes negative.

    agreement: theta as a share of the clients whose updates arrived.
    """

    def change(updates, clients):
        theta = agreement * jnp.sum(clients.arrived) * (1 - 1e-6)  # rounding must not exceed it

        def one(u):
            return u * jnp.where(jnp.abs(jnp.sum(jnp.sign(u), 0)) < theta, -1.0, 1.0)

        return [one(u) for u in updates]

    return cohort.changed(method, change)


@checked("aggregator")
def fltrust(
    method: Method,
    task: Task,
    *,
    server_lr: Positive[float] = 0.03,
    server_steps: Positive[int] = 10,
    server_batch: Positive[int] = 32,
) -> Method:
    """The mean of updates scaled to the norm of the server's, weighted by their cosines with it.

    FLTrust (Cao et al., NDSS 2021, arXiv:2012.13995). The server trains on public examples
    (config.partition.public), with their labels, from the model that it sends: its update is g.
    Client i has the weight max(0, cos(u_i, g)), and the update ||g|| u_i / ||u_i||.

    server_lr: the learning rate of the server, which should be that of the clients.
    server_steps: its number of steps, which should be that of a client.
    server_batch: the number of public examples in a step.
    """
    risk = losses.risk(task)

    def root(message, clients):
        """g, in the order of a client's updates."""
        public, key = clients.public, clients.key[0]

        def step(s, params):
            k_places, k_loss = jax.random.split(jax.random.fold_in(key, s))
            places = jax.random.randint(k_places, (server_batch,), 0, public.size)

            def value(params):
                return risk(message._replace(params=params), public.batch(places), k_loss)[0]

            return tree.add(params, jax.grad(value)(params), -server_lr)

        trained = jax.lax.fori_loop(0, server_steps, step, message.params)
        return jax.tree.leaves(optax.tree.sub(trained, message.params))

    def weigh(message, state, updates, clients):
        shapes = [u.shape[1:] for u in updates]
        if not isinstance(message, Weights) or shapes != [
            a.shape for a in jax.tree.leaves(message.params)
        ]:
            raise BadInput(
                "the server cannot train what its clients train: they do not send models"
            )
        weight, scaled = trusted(updates, clients, root(message, clients))
        return weight, scaled, state

    return counted.weighed(method, weigh, lambda state, num_clients: ())


@checked("aggregator")
def foolsgold(method: Method, task: Task, *, confidence: Positive[float] = 1.0) -> Method:
    """The mean of the updates, in which clients that always send similar updates count less.

    FoolsGold (Fung et al., RAID 2020, arXiv:1808.04866), without its choice of features. The server
    keeps the sum of the updates of each client, as large as a model for each. Weights are divided
    by their sum over the clients of the round.

    confidence: kappa, by which the logit of a weight is multiplied.
    """

    def first(state, num_clients):
        (shapes,) = rehearsal.updates(method, task, state, num_clients)
        return tree.repeat(tree.zeros(shapes), num_clients)

    def weigh(message, history, updates, clients):
        usable = clients.arrived & finite(updates)
        sent = tree.where(usable, updates, tree.zeros(updates))
        history = [h.at[clients.id].add(u, mode="drop") for h, u in zip(history, sent, strict=True)]
        sums = [h.at[clients.id].get(mode="fill", fill_value=0) for h in history]
        return unlike(sums, usable, confidence), updates, history

    return counted.weighed(method, weigh, first)


# The formulas. Updates and points have leaves [M, ...]; weights are [M].


def finite(updates: Updates) -> Array:
    """Which updates have a finite norm."""
    return jnp.isfinite(jax.vmap(tree.sq_norm)(updates))


def norms_of(updates: Updates) -> Array:
    """||u_i||."""
    return jnp.sqrt(jax.vmap(tree.sq_norm)(updates))


def cosines(points: Updates) -> Array:
    """The cosine of each pair of points [M, M]; 0 where one of them is 0."""
    products = tree.inner_products(points)
    norms = jnp.sqrt(jnp.diag(products))
    return products / jnp.maximum(norms[:, None] * norms, 1e-30)


def spectral(
    updates: Updates,
    cohort: Client,
    *,
    attackers: float,
    iterations: int,
    coordinates: int,
    filtered: float,
) -> Array:
    """The weights of DnC, 1 or 0. With S = U D V', <u_i - mu, v>^2 is D_1^2 U_i1^2."""
    usable = cohort.arrived & finite(updates)
    count = jnp.maximum(jnp.sum(usable), 1)
    all_rows = jnp.concatenate([u.reshape(len(u), -1) for u in updates], 1)
    all_rows = jnp.where(usable[:, None], all_rows, 0)  # [M, d]
    left_out = int(filtered * sampling.at_least_one(attackers, len(usable)) + 1e-6)
    if not left_out:
        raise BadInput(
            f"config.aggregator.filtered={filtered:g} leaves out nobody; it must be at least 1 /"
            " the number of attackers"
        )

    def one(kept, key):
        size = all_rows.shape[1]
        places = jax.random.permutation(key, size)[: min(coordinates, size)]
        rows = all_rows[:, places]
        rows = jnp.where(usable[:, None], rows - jnp.sum(rows, 0) / count, 0)
        score = jnp.linalg.eigh(tree.inner_products([rows]))[1][:, -1] ** 2
        rank = jnp.argsort(jnp.argsort(jnp.where(usable, score, jnp.inf)))
        return kept & (rank < jnp.maximum(count - left_out, 1)), None

    kept, _ = jax.lax.scan(one, usable, jax.random.split(cohort.key[0], iterations))
    return kept.astype(jnp.float32)


def majority(updates: Updates, cohort: Client) -> Array:
    """The weights of FLAME, 1 or 0: a connected cluster of more than half of the clients.

    Two clients are connected if there is a chain of clients between them, whose cosine distances
    are at most a threshold; the cluster is that of the smallest threshold. This is the cluster that
    HDBSCAN finds if clusters need more than half of all points, and one is enough.
    """
    usable = cohort.arrived & finite(updates)
    pair = usable[:, None] & usable
    sent = tree.where(usable, updates, tree.zeros(updates))
    distance = jnp.where(pair, 1 - cosines(sent), jnp.inf)
    places = jnp.arange(len(usable))
    distance = jnp.where(places[:, None] == places, jnp.where(usable, 0.0, jnp.inf), distance)

    def through(i, longest):  # of the steps of the best chain between two clients
        return jnp.minimum(longest, jnp.maximum(longest[:, i, None], longest[i]))

    longest = jax.lax.fori_loop(0, len(usable), through, distance)
    reached = jnp.sort(longest, 1)[:, jnp.sum(usable) // 2]  # when a cluster has so many members
    center = jnp.argmin(reached)
    return ((longest[center] <= reached[center]) & usable).astype(jnp.float32)


def trusted(updates: Updates, cohort: Client, root: list[Array]) -> tuple[Array, Updates]:
    """The weights of FLTrust, and the updates with the norm of the server's."""
    norms, length = norms_of(updates), jnp.sqrt(tree.sq_norm(root))
    usable = cohort.arrived & jnp.isfinite(norms)
    updates = tree.where(usable, updates, tree.zeros(updates))
    along = jax.vmap(tree.dot, (0, None))(updates, root)
    cosine = along / jnp.maximum(norms * length, 1e-30)
    scale = jnp.where(usable, length / jnp.maximum(norms, 1e-30), 0)
    scaled = [u * scale.reshape(-1, *(1,) * (u.ndim - 1)) for u in updates]
    return jnp.where(usable, jnp.maximum(cosine, 0), 0), scaled


def unlike(sums: Updates, usable: Array, confidence: float) -> Array:
    """The weights of FoolsGold, from the sums of the updates of each client of the round."""
    places = jnp.arange(len(usable))
    others = usable[:, None] & usable & (places[:, None] != places)
    similar = jnp.where(others, cosines(sums), 0)  # with itself: 0, so that no maximum is negative
    most = jnp.maximum(jnp.max(similar, 1), 0)
    divisor = jnp.where(most > 0, most, 1)
    pardon = jnp.where(most > most[:, None], most[:, None] / divisor, 1)  # v_i / v_j, if v_j > v_i
    most = jnp.max(jnp.where(others, similar * pardon, 0), 1)
    weight = jnp.where(usable, jnp.clip(1 - most, 0, 1), 0)
    weight = weight / jnp.maximum(jnp.max(weight), 1e-30)
    logit = confidence * (jnp.log(weight) - jnp.log1p(-weight) + 0.5)
    return jnp.where(usable, jnp.clip(logit, 0, 1), 0)
