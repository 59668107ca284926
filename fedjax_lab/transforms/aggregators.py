"""Robust aggregators: one update for a whole cohort, which a few arbitrary uploads cannot move far.

m of the M clients of the round have sent an update. u_i is the update of client i, as one vector
over all leaves that are updates (`wire`), and p_i is its share in the method's mean. Uploads that
were lost are ignored. Only the geometric median and the norm bound use the shares; all other
aggregators count each client once, as in their papers.

An upload may hold any values. Where ||u_i|| is not a finite number in float32, centered clipping
and the norm bound replace u_i by 0, and the geometric median ignores it; the other aggregators sort
it to one end.
"""

from functools import partial
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import sampling, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, Positive, Within, checked
from fedjax_lab.transforms import cohort, rehearsal, server_state
from fedjax_lab.transforms.cohort import Updates
from fedjax_lab.types import Array, Client, Method, Task

Minority = Annotated[float, Within(0, 0.5, below=True)]  # a share of clients


def median(method: Method, task: Task) -> Method:
    """The median of each coordinate (Yin et al., ICML 2018, arXiv:1803.01498)."""
    return cohort.replaced(method, partial(trimmed, share=0.5))


@checked("aggregator")
def trimmed_mean(method: Method, task: Task, *, trim: Minority = 0.2) -> Method:
    """The mean of each coordinate without its lowest and highest values.

    Yin et al., ICML 2018, arXiv:1803.01498.

    trim: the share beta of values that are left out at each end, floor(beta m) of them, but one of
        at least three; below 0.5. With 0 the method is unchanged and takes its own mean, by share.
    """
    return cohort.replaced(method, partial(trimmed, share=trim)) if trim else method


@checked("aggregator")
def krum(method: Method, task: Task, *, attackers: Minority = 0.2) -> Method:
    """The update that is closest to its neighbors (Blanchard et al., NeurIPS 2017).

    attackers: the share of a round's clients that may be attackers, f of M, rounded down but
        at least 1; M must be at least 2f + 3.
    """
    return _best(method, attackers=attackers, chosen=1)


@checked("aggregator")
def multi_krum(
    method: Method, task: Task, *, attackers: Minority = 0.2, chosen: NotNegative[int] = 0
) -> Method:
    """The mean of the updates that are closest to their neighbors.

    Multi-Krum (Blanchard et al., NeurIPS 2017).

    attackers: the share of a round's clients that may be attackers, f of M, rounded down but
        at least 1; M must be at least 2f + 3.
    chosen: the number of updates in the mean; 0: m - f - 2.
    """
    return _best(method, attackers=attackers, chosen=chosen)


def _best(method, **settings):
    return cohort.replaced(method, partial(mean_of_best, **settings), partial(best, **settings))


@checked("aggregator")
def bulyan(method: Method, task: Task, *, attackers: Minority = 0.2) -> Method:
    """The mean of each coordinate's values nearest to its median, over updates that Krum chooses.

    Bulyan (El Mhamdi et al., ICML 2018, arXiv:1802.07927): Krum chooses m - 2f updates, one after
    another among those that are left. Of these, m - 4f values of each coordinate enter the mean.

    attackers: the share of a round's clients that may be attackers, f of M, rounded down but
        at least 1; M must be at least 4f + 3.
    """
    return cohort.replaced(method, partial(mean_near_median, attackers=attackers))


@checked("aggregator")
def geometric_median(
    method: Method, task: Task, *, iterations: Positive[int] = 4, smoothing: Positive[float] = 1e-6
) -> Method:
    """The point z with the least sum_i p_i ||z - u_i||.

    RFA (Pillutla et al., IEEE TSP 2022, arXiv:1912.13445): a few iterations of the smoothed
    Weiszfeld algorithm, from the weighted mean.

    iterations: the number of iterations of the algorithm.
    smoothing: nu, the lower bound of the distances that the algorithm divides by.
    """
    return cohort.replaced(method, partial(weiszfeld, iterations=iterations, nu=smoothing))


@checked("aggregator")
def centered_clipping(
    method: Method,
    task: Task,
    *,
    radius: Positive[float] = 10.0,
    iterations: Positive[int] = 3,
    start: Literal["zero", "last"] = "zero",
) -> Method:
    """The mean of the updates, with their distances from a center clipped, in several iterations.

    Centered clipping (Karimireddy et al., ICML 2021, arXiv:2012.10333). The mean becomes the center
    of the next iteration. The paper starts from the aggregate of the previous round, with one
    iteration, and its clients send momentum (config.aggregator.momentum). With the defaults every
    round starts from 0, so that the server does not have to keep a state.

    radius: tau, the largest distance of an update from the center that is not clipped; one client
        of m moves the center by at most tau / m in an iteration.
    iterations: how often the center is moved in a round.
    start: the first center of a round: zero, or the last round's aggregate.
    """
    clip = partial(centered, radius=radius, iterations=iterations)
    if start == "zero":
        return cohort.replaced(method, clip)
    cohort.check_common(method)

    def first(state, num_clients):
        (shapes,) = rehearsal.updates(method, task, state, num_clients)
        return tree.zeros(shapes)

    def change(message, center, updates, clients):
        center = clip(updates, clients, start=center)
        return tree.repeat(center, len(clients.id)), center

    return server_state.with_changes(method, first, change)


@checked("aggregator")
def norm_bound(method: Method, task: Task, *, bound: Positive[float] = 1.0) -> Method:
    """Scales each update down to a norm of at most `bound` (Sun et al., arXiv:1911.07963).

    The method then aggregates the updates itself, for example by a mean by share.

    bound: the largest norm of an update.
    """
    return cohort.changed(method, lambda updates, _: jax.vmap(partial(clipped, bound))(updates))


# The formulas. Each maps the updates [M, ...] of a cohort to one update.


def clipped(bound: float | Array, update: list[Array]) -> list[Array]:
    """Returns min(1, bound / ||u||) u, and 0 where ||u|| is not finite.

    An update with a norm of at most `bound` is returned unchanged, bit for bit.
    """
    norm = jnp.sqrt(tree.sq_norm(update))
    scaled = optax.tree.scale(bound / jnp.maximum(norm, 1e-30), update)
    shorter = tree.where(jnp.isfinite(norm), scaled, tree.zeros(update))
    return tree.where(norm <= bound, update, shorter)


def trimmed(updates: Updates, cohort: Client, *, share: float) -> Updates:
    """Returns the mean of each coordinate without its floor(share m) lowest and highest values.

    At least one is left out at each end, and at least one value is left, or two if m is even.
    """
    m = jnp.sum(cohort.arrived)
    cut = jnp.clip(jnp.floor(share * m + 1e-6).astype(m.dtype), 1, (m - 1) // 2)

    def one(u):
        wide = cohort.arrived.reshape(-1, *(1,) * (u.ndim - 1))
        ordered = jnp.sort(jnp.where(wide, u, jnp.inf), 0)  # lost uploads come last
        place = jnp.arange(len(u)).reshape(wide.shape)
        kept = (place >= cut) & (place < m - cut)
        return jnp.sum(jnp.where(kept, ordered, 0), 0) / jnp.maximum(m - 2 * cut, 1)

    return [one(u) for u in updates]


def mean_of_best(updates: Updates, cohort: Client, *, attackers: Minority, chosen: int) -> Updates:
    """Returns the mean of the updates that `best` chooses."""
    return mean_of(updates, best(updates, cohort, attackers=attackers, chosen=chosen))


def best(updates: Updates, cohort: Client, *, attackers: Minority, chosen: int) -> Array:
    """Which updates have the lowest scores, [M]; ties go to the first in the cohort.

    The score of an update is the sum of its squared distances to the m - f - 2 nearest other
    updates, or to the nearest one if so many uploads are lost that m - f - 2 is below 1.

    attackers: the share of attackers among the clients of the round, which gives f.
    chosen: the number of updates that are chosen; 0: m - f - 2.
    """
    f = most_attackers(len(cohort.id), attackers, chosen)
    score = krum_scores(squared_distances(updates), cohort.arrived, f)
    rank = jnp.argsort(jnp.argsort(score))
    neighbors = jnp.maximum(jnp.sum(cohort.arrived) - f - 2, 1)
    return cohort.arrived & (rank < (chosen or neighbors))


def mean_near_median(updates: Updates, cohort: Client, *, attackers: Minority) -> Updates:
    """Returns the aggregate of Bulyan.

    Of lost uploads, m - 2f and m - 4f are taken with the m that arrived, and are at least 1.

    attackers: the share of attackers among the clients of the round, which gives f.
    """
    f = most_attackers(len(cohort.id), attackers, name="Bulyan", factor=4)
    apart, m = squared_distances(updates), jnp.sum(cohort.arrived)
    count, kept = (jnp.maximum(m - factor * f, 1) for factor in (2, 4))

    def choose(i, chosen):
        left = cohort.arrived & ~chosen
        best = jnp.argsort(krum_scores(apart, left, f))[0]  # nan comes last
        return chosen.at[best].set(chosen[best] | (i < count))

    chosen = jax.lax.fori_loop(0, len(cohort.id), choose, jnp.zeros_like(cohort.arrived))
    middles = trimmed(updates, cohort._replace(arrived=chosen), share=0.5)

    def one(u, middle):
        far = jnp.where(chosen.reshape(-1, *(1,) * middle.ndim), jnp.abs(u - middle), jnp.inf)
        nearest = jnp.argsort(far, 0)
        place = jnp.arange(len(u)).reshape(-1, *(1,) * middle.ndim)
        return jnp.sum(jnp.where(place < kept, jnp.take_along_axis(u, nearest, 0), 0), 0) / kept

    return [one(u, middle) for u, middle in zip(updates, middles, strict=True)]


def krum_scores(apart: Array, present: Array, f: int) -> Array:
    """The sum of squared distances of each update to its m - f - 2 nearest others, [M].

    apart: the squared distances [M, M]. present: which m updates count; the others get infinity.
    """
    place = jnp.arange(len(present))
    is_pair = present[:, None] & present & (place[:, None] != place)
    ordered = jnp.sort(jnp.where(is_pair, apart, jnp.inf))
    neighbors = jnp.maximum(jnp.sum(present) - f - 2, 1)
    score = jnp.sum(jnp.where(place < neighbors, ordered, 0), 1)
    return jnp.where(present, score, jnp.inf)


def most_attackers(
    clients: int, attackers: float, chosen: int = 0, name: str = "Krum", factor: int = 2
) -> int:
    """Returns f, the largest number of attackers among the clients of a round.

    Raises BadInput where the guarantee of an aggregator needs `factor` f + 3 clients, or Krum fewer
    chosen updates.
    """
    f = sampling.at_least_one(attackers, clients)
    if clients < factor * f + 3:
        raise BadInput(
            f"{name} needs at least {factor}f + 3 = {factor * f + 3} clients in a round for f={f}"
            f" attackers, but a round has {clients} clients"
            f" (config.aggregator.attackers={attackers})"
        )
    if chosen > clients - f - 2:
        raise BadInput(
            f"config.aggregator.chosen={chosen} must be at most M - f - 2 = {clients - f - 2} for"
            f" f={f} attackers among the M={clients} clients of a round"
        )
    return f


def squared_distances(updates: Updates) -> Array:
    """Returns ||u_i - u_j||^2 for all pairs of updates, [M, M]."""
    products = tree.inner_products(updates)
    squares = jnp.diag(products)
    return jnp.maximum(squares[:, None] + squares - 2 * products, 0)


def weiszfeld(updates: Updates, cohort: Client, *, iterations: int, nu: float) -> Updates:
    """Returns the geometric median of the updates by the smoothed Weiszfeld algorithm.

    z <- sum_i b_i u_i / sum_i b_i, where b_i = p_i / max(nu, ||z - u_i||), from the weighted mean.
    """
    is_finite = jnp.isfinite(jax.vmap(tree.sq_norm)(updates))
    updates = tree.where(is_finite, updates, tree.zeros(updates))
    share = jnp.where(is_finite, cohort.weight, 0)

    def step(_, z):
        b = share / jnp.maximum(nu, distances(updates, z))
        return tree.mix(b / jnp.sum(b), updates)

    return jax.lax.fori_loop(0, iterations, step, tree.mix(share, updates))


def centered(
    updates: Updates,
    cohort: Client,
    *,
    radius: float,
    iterations: int,
    start: list[Array] | None = None,
) -> Updates:
    """Returns the result of centered clipping with radius tau.

    v <- v + 1/m sum_i (u_i - v) min(1, tau / ||u_i - v||), from v = `start`, or from 0.
    """

    def step(_, v):
        beyond = [u - a for u, a in zip(updates, v, strict=True)]
        near = jax.vmap(partial(clipped, radius))(beyond)
        return tree.add(v, mean_of(near, cohort.arrived))

    start = [jnp.zeros_like(u[0]) for u in updates] if start is None else start
    return jax.lax.fori_loop(0, iterations, step, start)


def distances(updates: Updates, point: list[Array]) -> Array:
    """Returns ||u_i - z||, the distance [M] of each update from a point z."""
    beyond = [u - z for u, z in zip(updates, point, strict=True)]
    return jnp.sqrt(jax.vmap(tree.sq_norm)(beyond))


def mean_of(updates: Updates, which: Array) -> Updates:
    """Returns the mean of the chosen updates, or 0 if none is chosen.

    The other updates are not multiplied by 0, because they may be infinite.

    which: [M] bool, the chosen updates.
    """
    kept = tree.where(which, updates, tree.zeros(updates))
    return tree.mix(jnp.full(which.shape, 1 / jnp.maximum(jnp.sum(which), 1)), kept)
