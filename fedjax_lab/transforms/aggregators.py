"""Aggregators that a few arbitrary uploads cannot move far: one update for all of a cohort.

m of the M clients of the round have sent an update; u_i is client i's, as one vector over all
leaves that are updates (`wire`), and p_i is its share in the method's mean. An upload that was lost
counts nowhere. Only the geometric median and the norm bound look at the shares: all others count
each client once, as their papers do.

An upload may hold anything. Where ||u_i|| is not a finite number in float32, centered clipping and
the norm bound take u_i for 0, and the geometric median leaves it out; the others sort it to an end.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.errors import BadInput, check_not_negative, check_positive
from fedjax_lab.transforms import cohort
from fedjax_lab.transforms.cohort import Updates
from fedjax_lab.types import Array, Client, Method, Task


def median(method: Method, task: Task) -> Method:
    """The median of each coordinate (Yin et al., ICML 2018, arXiv:1803.01498)."""
    return cohort.replaced(method, partial(trimmed, share=0.5))


def trimmed_mean(method: Method, task: Task, *, trim: float = 0.2) -> Method:
    """The mean of each coordinate without its lowest and its highest values.

    Yin et al., ICML 2018, arXiv:1803.01498.

    trim: the share beta of values that is left out at each end, floor(beta m) of them; at least 0
        and below 0.5. With 0 it is the plain method, whose mean is one by share.
    """
    if not 0 <= trim < 0.5:
        raise BadInput(f"config.aggregator.trim must be at least 0 and below 0.5, got {trim}")
    return cohort.replaced(method, partial(trimmed, share=trim)) if trim else method


def krum(method: Method, task: Task, *, attackers: float = 0.2) -> Method:
    """The update that is closest to its neighbors (Blanchard et al., NeurIPS 2017).

    attackers: the share of a round's clients that may be attackers, f of M, rounded down; M must be
        at least 2f + 3.
    """
    check_attackers(attackers)
    return cohort.replaced(method, partial(mean_of_best, attackers=attackers, chosen=1))


def multi_krum(method: Method, task: Task, *, attackers: float = 0.2, chosen: int = 0) -> Method:
    """The mean of the updates that are closest to their neighbors.

    Multi-Krum (Blanchard et al., NeurIPS 2017).

    attackers: the share of a round's clients that may be attackers, f of M, rounded down; M must be
        at least 2f + 3.
    chosen: the number of updates in the mean; 0: m - f - 2.
    """
    check_attackers(attackers)
    check_not_negative("aggregator.chosen", chosen)
    return cohort.replaced(method, partial(mean_of_best, attackers=attackers, chosen=chosen))


def geometric_median(
    method: Method, task: Task, *, iterations: int = 4, smoothing: float = 1e-6
) -> Method:
    """The point z with the least sum_i p_i ||z - u_i||.

    Pillutla et al., IEEE TSP 2022, arXiv:1912.13445: the smoothed Weiszfeld algorithm, from the
    weighted mean.

    iterations: how often z is computed anew.
    smoothing: nu, the least distance that is divided by.
    """
    check_positive("aggregator.iterations", iterations)
    check_positive("aggregator.smoothing", smoothing)
    return cohort.replaced(method, partial(weiszfeld, iterations=iterations, nu=smoothing))


def centered_clipping(
    method: Method, task: Task, *, radius: float = 10.0, iterations: int = 3
) -> Method:
    """The mean of what lies close to a center, which is moved there several times.

    Karimireddy et al., ICML 2021, arXiv:2012.10333 (centered clipping). The paper
    starts from the aggregate of the round before. Here every round starts from 0, no update at all,
    so that the server need not keep anything.

    radius: tau, how far one client can move the center, times m.
    iterations: how often the center is moved in a round.
    """
    check_positive("aggregator.radius", radius)
    check_positive("aggregator.iterations", iterations)
    return cohort.replaced(method, partial(centered, radius=radius, iterations=iterations))


def norm_bound(method: Method, task: Task, *, bound: float = 1.0) -> Method:
    """Each update is scaled down to a norm of at most `bound` (Sun et al., arXiv:1911.07963).

    What the method then does, such as a mean by share, is its own.
    """
    check_positive("aggregator.bound", bound)
    return cohort.changed(method, lambda updates, _: jax.vmap(partial(clipped, bound))(updates))


# The formulas. Updates [M, ...] and a cohort give one update.


def clipped(bound: float | Array, update: list[Array]) -> list[Array]:
    """min(1, bound / ||u||) u; an update that is short enough stays as it is, bit for bit.

    0 where ||u|| is not finite.
    """
    norm = jnp.sqrt(tree.sq_norm(update))
    scaled = tree.scale(bound / jnp.maximum(norm, 1e-30), update)
    shorter = tree.where(jnp.isfinite(norm), scaled, tree.zeros(update))
    return tree.where(norm <= bound, update, shorter)


def trimmed(updates: Updates, cohort: Client, *, share: float) -> Updates:
    """The mean of each coordinate's values between its lowest and highest floor(share m).

    At least one or, of an even m, two are left.
    """
    m = jnp.sum(cohort.arrived)
    cut = jnp.minimum(jnp.floor(share * m + 1e-6).astype(m.dtype), (m - 1) // 2)

    def one(u):
        wide = cohort.arrived.reshape(-1, *(1,) * (u.ndim - 1))
        ordered = jnp.sort(jnp.where(wide, u, jnp.inf), 0)  # what is lost comes last
        place = jnp.arange(len(u)).reshape(wide.shape)
        kept = (place >= cut) & (place < m - cut)
        return jnp.sum(jnp.where(kept, ordered, 0), 0) / jnp.maximum(m - 2 * cut, 1)

    return [one(u) for u in updates]


def mean_of_best(updates: Updates, cohort: Client, *, attackers: float, chosen: int) -> Updates:
    """The mean of the updates with the lowest scores; of equal ones the first in the cohort.

    A score is the sum of the squared distances to the m - f - 2 nearest others, or to the nearest
    one where so many uploads are lost that there are fewer. chosen: 0: m - f - 2.
    """
    f = most_attackers(len(cohort.id), attackers, chosen)
    m, place = jnp.sum(cohort.arrived), jnp.arange(len(cohort.id))
    neighbors = jnp.maximum(m - f - 2, 1)
    is_pair = cohort.arrived[:, None] & cohort.arrived & (place[:, None] != place)
    ordered = jnp.sort(jnp.where(is_pair, squared_distances(updates), jnp.inf))
    score = jnp.sum(jnp.where(place < neighbors, ordered, 0), 1)
    rank = jnp.argsort(jnp.argsort(jnp.where(cohort.arrived, score, jnp.inf)))
    best = cohort.arrived & (rank < (chosen or neighbors))
    return mean_of(updates, best)


def most_attackers(clients: int, attackers: float, chosen: int) -> int:
    """f for so many clients of a round. BadInput where Krum does not hold for them."""
    f = math.floor(attackers * clients + 1e-6)
    if clients < 2 * f + 3:
        raise BadInput(
            f"Krum needs 2f + 3 clients in a round, {2 * f + 3} for f={f} attackers among"
            f" {clients} clients (config.aggregator.attackers={attackers})"
        )
    if chosen > clients - f - 2:
        raise BadInput(
            f"config.aggregator.chosen={chosen} must be at most M - f - 2, which is"
            f" {clients - f - 2} of {clients} clients in a round"
        )
    return f


def check_attackers(share: float) -> None:
    """BadInput unless attackers are fewer than half."""
    if not 0 <= share < 0.5:
        raise BadInput(f"config.aggregator.attackers must be at least 0 and below 0.5, got {share}")


def squared_distances(updates: Updates) -> Array:
    """||u_i - u_j||^2 [M, M]."""

    def gram(u):
        rows = u.reshape(len(u), -1)
        return jnp.dot(rows, rows.T, precision=jax.lax.Precision.HIGHEST)

    products = sum(gram(u) for u in updates)
    squares = jnp.diag(products)
    return jnp.maximum(squares[:, None] + squares - 2 * products, 0)


def weiszfeld(updates: Updates, cohort: Client, *, iterations: int, nu: float) -> Updates:
    """z <- sum_i b_i u_i / sum_i b_i, where b_i = p_i / max(nu, ||z - u_i||)."""
    is_finite = jnp.isfinite(jax.vmap(tree.sq_norm)(updates))
    updates = tree.where(is_finite, updates, tree.zeros(updates))
    share = jnp.where(is_finite, cohort.weight, 0)

    def step(_, z):
        b = share / jnp.maximum(nu, distances(updates, z))
        return tree.mix(b / jnp.sum(b), updates)

    return jax.lax.fori_loop(0, iterations, step, tree.mix(share, updates))


def centered(updates: Updates, cohort: Client, *, radius: float, iterations: int) -> Updates:
    """v <- v + 1/m sum_i (u_i - v) min(1, tau / ||u_i - v||), from v = 0."""

    def step(_, v):
        beyond = [u - a for u, a in zip(updates, v, strict=True)]
        near = jax.vmap(partial(clipped, radius))(beyond)
        return tree.add(v, mean_of(near, cohort.arrived))

    return jax.lax.fori_loop(0, iterations, step, [jnp.zeros_like(u[0]) for u in updates])


def distances(updates: Updates, point: list[Array]) -> Array:
    """||u_i - z|| [M]."""
    beyond = [u - z for u, z in zip(updates, point, strict=True)]
    return jnp.sqrt(jax.vmap(tree.sq_norm)(beyond))


def mean_of(updates: Updates, which: Array) -> Updates:
    """The mean of the chosen updates, which [M] bool; 0 where there are none.

    Others are not even multiplied by 0: they may be infinite.
    """
    kept = tree.where(which, updates, tree.zeros(updates))
    return tree.mix(jnp.full(which.shape, 1 / jnp.maximum(jnp.sum(which), 1)), kept)
