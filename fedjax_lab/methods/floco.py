"""Floco (Grinwald, Wiesner, Nakajima, NeurIPS 2024, arXiv:2403.03333): a simplex of solutions.

  send    w_t, with M kernels theta_m of the head, the endpoints;  the client's alpha_k
  local   w_k <- SGD on F_k(w) with the kernel sum_m alpha_m theta_m; each step draws an alpha:
          stages 1, 2  uniformly from the simplex
          stage 3      alpha_k + r v / ||v||_1,  r ~ U(0, rho),  v ~ U(-1, 1)^M
  server  w_{t+1} = sum_k n_k/n w_k
          stage 2      alpha_k = the point of the simplex that is nearest to kappa_k / z

Stage 2, one round of all clients, ends the share `tau` of the rounds. kappa_k are the first M
principal components of the endpoints that client k returns, and z is the one of 100 scales from
1e-4 to 1 with the lowest Riesz energy of the points, sum_ij ||alpha_i - alpha_j||^-2. A client
predicts with alpha_k, and before the end of stage 2, or if it is new, with the center of the
simplex. The formulas are those of the authors' code: the bias has no endpoints, an alpha of stage 3
may lie outside of the simplex, and distances count as at least 1e-4. The code compares 1000 evenly
spaced scales, between which rounding decides, and averages only some of the models of stage 2. The
defaults are the authors' for Dirichlet shares of CIFAR-10 (in Flower), where `tau` is 250 of 500
rounds. Floco+, which adds Ditto's personal models, is left out.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, streams, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import BelowOne, Positive, checked, choice, uniform
from fedjax_lab.types import Array, Client, Exchange, Method, Stage, Stages, State, Task, Weights

RANGES = {"endpoints": choice(5, 10, 20), "rho": uniform(0.0, 0.5), "tau": choice(0.25, 0.5, 0.75)}
CLOSEST = 1e-4  # distance of two points in the energy


class Server(NamedTuple):
    """The server's state. A message has one alpha [M]."""

    w: Weights
    alpha: Array  # [C, M]


@checked("method")
def floco(
    task: Task, *, endpoints: Positive[int] = 10, rho: float = 0.3, tau: BelowOne = 0.5
) -> Stages:
    """endpoints: M, the number of endpoints. rho: radius of a client's subregion.

    tau: the share of config.run.rounds before the subregions, below 1; it has at least one round.
    """
    anywhere, around = (
        training(task, draw) for draw in (draw_simplex, partial(draw_subregion, rho))
    )
    exchange = anywhere.round[0]._replace(aggregate=assign)
    assignment = anywhere._replace(round=(exchange,), sample=sampling.all_clients)

    def start(key, num_clients, last, facts):
        return last or first_state(task, endpoints, key, num_clients)

    def stages(rounds):
        before = max(1, int(tau * rounds))
        all_stages = (
            Stage("simplex", anywhere, before - 1, start=start),
            Stage("assign", assignment, 1, start=start, reliable=True),
            Stage("subregions", around, rounds - before, start=start),
        )
        return all_stages if before > 1 else all_stages[1:]

    return stages


def first_state(task: Task, endpoints: int, key: Array, num_clients: int) -> State:
    """Returns different random endpoints, and the center of the simplex for each client."""
    check_pairs("floco", num_clients)
    w = task.init(key)
    keys = jax.random.split(streams.extra(key), endpoints)
    kernels = jax.vmap(lambda key: task.init(key).params[task.head]["kernel"])(keys)
    w = _heads.with_head(w, {**w.params["head"], "kernel": kernels})
    return State(Server(w, jnp.full((num_clients, endpoints), 1 / endpoints)), ())


def training(task: Task, draw: Callable[[Array, Array], Array]) -> Method:
    """Returns FedAvg of models with endpoints. draw: (key, alpha_k) -> the alpha of a step."""
    risk = losses.risk(task)

    def local(message, client, work):
        def loss(w, batch, key):
            return risk(at(w, draw(streams.extra(key), message.alpha)), batch, key)

        return work.train(message.w, loss), ()

    def newcomer(state):
        M = state.server.alpha.shape[1]
        return Server(state.server.w, jnp.full(M, 1 / M)), ()

    return fedavg(task)._replace(
        init=None,
        round=(Exchange(send, local, aggregate, updates=updates),),
        predict=lambda message, client, x: task.apply(at(message.w, message.alpha), x).logits,
        newcomer=newcomer,
    )


def send(server: Server, id: Array) -> Server:
    """Sends w_t and alpha_k."""
    return server._replace(alpha=server.alpha[id])


def aggregate(server: Server, w: Weights, cohort: Client) -> Server:
    """Averages the models."""
    return server._replace(w=tree.mix(cohort.weight, w))


def assign(server: Server, w: Weights, cohort: Client) -> Server:
    """Averages the models, and computes alpha_k of each client."""
    theta = w.params["head"]["kernel"].reshape(len(cohort.id), -1)
    alpha = assigned(components(theta, server.alpha.shape[1]))
    return aggregate(server._replace(alpha=server.alpha.at[cohort.id].set(alpha)), w, cohort)


def updates(message, id, w):
    """Marks the upload as an update of w_t."""
    return wire.model_references(message.w, w)


def at(w: Weights, alpha: Array) -> Weights:
    """Returns the model at a point of the simplex: the kernel is sum_m alpha_m theta_m."""
    head = w.params["head"]
    return _heads.with_head(w, {**head, "kernel": tree.mix(alpha, head["kernel"])})


def draw_simplex(key: Array, alpha_k: Array) -> Array:
    """Draws an alpha uniformly from the simplex."""
    e = jax.random.exponential(key, alpha_k.shape)
    return e / jnp.sum(e)


def draw_subregion(rho: float, key: Array, alpha_k: Array) -> Array:
    """Draws an alpha around alpha_k."""
    k_r, k_v = jax.random.split(key)
    v = jax.random.uniform(k_v, alpha_k.shape, minval=-1)
    return alpha_k + rho * jax.random.uniform(k_r) * v / jnp.sum(jnp.abs(v))


def components(rows: Array, count: int) -> Array:
    """Returns the first principal components of rows [C, P], as [C, count].

    The largest number of a component is positive. There are at most C - 1; others are 0.
    """
    given = min(count, len(rows) - 1)
    away = rows - jnp.mean(rows, 0)
    lam, U = jnp.linalg.eigh(jnp.dot(away, away.T, precision="highest"))
    kappa = (U * jnp.sqrt(jnp.maximum(lam, 0)))[:, ::-1][:, :given]
    sign = jnp.where(jnp.max(kappa, 0) >= -jnp.min(kappa, 0), 1, -1)
    return jnp.pad(kappa * sign, ((0, 0), (0, count - given)))


def assigned(kappa: Array) -> Array:
    """Returns the alpha_k [C, M] of the best scale z."""

    below = kappa - jnp.max(kappa, 1, keepdims=True)  # has the same nearest point, more precisely

    def at_scale(z):
        alpha = jax.vmap(optax.projections.projection_simplex)(below / z)
        distance = jnp.linalg.norm(alpha[:, None] - alpha, axis=-1)
        energies = jnp.maximum(distance, CLOSEST) ** -2 * (1 - jnp.eye(len(alpha)))
        return jnp.sum(energies), alpha

    energy, alpha = jax.lax.map(at_scale, jnp.geomspace(1e-4, 1, 100))
    return alpha[jnp.argmin(energy)]
