"""hFedF (Bartholet et al., 2024, arXiv:2402.06974): a hypernetwork makes every client's model.

  send    phi_i = h(nu_i; theta)
  local   phi~_i <- SGD on F_i from phi_i;  delta_i = phi_i - phi~_i
  server  g_i = (d phi_i / d(theta, nu))^T delta_i
          gamma_i = cos(mean_j g_j, g_i)                                                   (eq. 8)
          g = sum_i softmax(gamma)_i g_i: GradAlign                                        (eq. 9)
          (theta, nu) <- Adam((theta, nu), g), its weight decay in the gradient
          after a warm-up, EMA: x <- ema x + (1 - ema) x_EMA, x_EMA <- x                  (Alg. 4)

The paper prints delta with the other sign, which climbs, and eq. 9 with a minus, against its text
and Alg. 3. The g_i are never formed, only their inner products. Running statistics, where the model
has any, are averaged by size and sent along. An unseen client gets the model of the mean embedding.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.errors import BadInput, check_choice, check_share
from fedjax_lab.methods.embeddings import embed
from fedjax_lab.models import hypernetwork
from fedjax_lab.models.hypernetwork import embedding_size, generate
from fedjax_lab.types import Array, Exchange, Method, PyTree, Stage, Stages, State, Task, Weights

WIDTH = 50  # of the hypernetwork's layers


class Trained(NamedTuple):
    """What the server trains."""

    theta: hypernetwork.Hypernetwork
    nu: Array  # [C, e]


class Server(NamedTuple):
    """What the server knows."""

    x: Trained
    average: PyTree  # x_EMA where it is not x itself
    moments: PyTree  # Adam's
    t: Array  # rounds played
    weight: Array  # [C] softmax(gamma) of the last round, 0 where a client took no part
    stats: PyTree  # running statistics
    key: Array  # of random embeddings


def hfedf(
    task: Task,
    *,
    server_lr: float = 1e-3,
    server_decay: float = 1e-5,
    grad_align: bool = True,
    align_nu: bool = True,
    ema: float = 0.95,
    ema_warmup: int = 10,
    ema_mode: str = "feedback",
    embedding: str = "learned",
    embedding_dim: int = 0,
    start: str = "torch",
    clip: float = 0.0,
    nu_lazy: bool = False,
) -> Method | Stages:
    """server_lr, server_decay: of Adam on theta and nu.

    grad_align: off: the plain mean of the g_i. align_nu: whether cosines include nu.
    ema: share of the new weights; 1: no average. ema_warmup: w, the last round that is not averaged
    (the first is 0).
    ema_mode: feedback (training goes on from the average); shadow (the average is only scored).
    embedding: learned; random: drawn anew after every round, never trained; autoencoder: found in a
    round before the first (embeddings.py), never trained; autoencoder_learned: found, then learned.
    embedding_dim: e; 0: floor(1 + C / 4).
    start: torch: PyTorch's first weights of the hypernetwork; client: heads that begin with a
    client model of PyTorch's first weights, and a tenth of theirs on top.
    clip: largest norm of g; 0: none.
    nu_lazy: embeddings (and their moments) of who takes no part rest.
    """
    check_share("method.ema", ema)
    check_choice("method.ema_mode", ema_mode, ("feedback", "shadow"))
    found = ("autoencoder", "autoencoder_learned")
    check_choice("method.embedding", embedding, ("learned", "random", *found))
    if embedding in found and not embedding_dim:
        raise BadInput(f"config.method.embedding={embedding} needs config.method.embedding_dim")
    check_choice("method.start", start, ("torch", "client"))
    adam = optim.adam(server_lr, server_decay)
    activation = partial(jax.nn.leaky_relu, negative_slope=0.01)
    learned, shadow = embedding.endswith("learned"), ema_mode == "shadow"

    def init(key, num_clients):
        w = task.init(key)
        k_theta, k_nu, k_rest = jax.random.split(jax.random.fold_in(key, 1), 3)
        e = embedding_dim or embedding_size(num_clients)
        theta = hypernetwork.first_weights(k_theta, w.params, e, WIDTH)
        if start == "client":
            theta = theta._replace(kernel=tree.scale(0.1, theta.kernel), bias=w.params)
        x = Trained(theta, jax.random.normal(k_nu, (num_clients, e)))
        average, weight = (x if shadow else ()), jnp.zeros(num_clients)
        return State(Server(x, average, adam.init(x), jnp.int32(0), weight, w.stats, k_rest), ())

    def model(x, id):
        return generate(x.theta, x.nu[id], activation)

    def send(server, id):
        return Weights(model(server.x, id), server.stats)

    def final(server):
        return server.average if shadow else server.x

    def scored(server, id):
        return Weights(model(final(server), id), server.stats)

    def aggregate(server, uploads, cohort):
        delta, ids, x = uploads.params, cohort.id, server.x
        weight = jnp.full(len(ids), 1 / len(ids))
        if grad_align:
            with_nu = align_nu and learned
            gram = hypernetwork.inner_products(x.theta, x.nu[ids], delta, activation, with_nu)
            weight = jax.nn.softmax(alignment(gram))  # eq. 9
        _, pull = jax.vjp(lambda x: jax.vmap(partial(model, x))(ids), x)
        (g,) = pull(jax.vmap(tree.scale)(weight, delta))
        g = g if learned else g._replace(nu=jnp.zeros_like(g.nu))
        updates, moments = adam.update(optim.clip(g, clip), server.moments, x)
        after = optax.apply_updates(x, updates)
        if nu_lazy or not learned:
            here = jnp.zeros(len(x.nu), bool).at[ids].set(learned)
            after, moments = rest(here, (after, moments), (x, server.moments))
        before = server.average if shadow else x
        average = jax.tree.map(lambda a, b: ema * a + (1 - ema) * b, after, before)  # Alg. 4
        average = tree.where(server.t > ema_warmup, average, after)
        x, average = (after, average) if shadow else (average, ())
        if embedding == "random":
            key = jax.random.fold_in(server.key, server.t)
            fresh = jax.random.normal(key, x.nu.shape)
            x, average = (a._replace(nu=fresh) if a else a for a in (x, average))
        stats = tree.mix(cohort.n / jnp.sum(cohort.n), uploads.stats)
        shown = jnp.zeros(len(x.nu)).at[ids].set(weight)
        return Server(x, average, moments, server.t + 1, shown, stats, server.key)

    def predict(phi, client, x):
        return task.apply(phi, x).logits

    def newcomer(state):
        theta, nu = final(state.server)
        return Weights(generate(theta, jnp.mean(nu, 0), activation), state.server.stats), ()

    def record(state):
        return {"weight": state.server.weight, "embedding": state.server.x.nu}

    round_ = (Exchange(send, pseudo_gradient(task), aggregate),)
    method = Method(init, round_, predict, newcomer, sampling.by_size, scored=scored, record=record)
    if embedding not in found:
        return method

    def embedded(key, num_clients, last, facts):
        state = init(key, num_clients)
        x = state.server.x._replace(nu=last.server[1])
        average = x if shadow else ()
        return state._replace(server=state.server._replace(x=x, average=average))

    return lambda rounds: (
        embed(task, embedding_dim),
        Stage("train", method, rounds, start=embedded),
    )


def pseudo_gradient(task: Task):
    """The `local` that uploads delta_i = phi_i - phi~_i, with the running statistics after it."""
    risk = losses.risk(task)

    def local(phi, client, work):
        after = work.train(phi, risk)
        return Weights(tree.sub(phi.params, after.params), after.stats), ()

    return local


def alignment(gram: Array) -> Array:
    """Cosine [M] of each g_i with their mean, from their inner products [M, M]."""
    length = jnp.sqrt(jnp.maximum(jnp.mean(gram), 0)) * jnp.sqrt(jnp.diag(gram))
    return jnp.clip(jnp.mean(gram, 1) / (length + 1e-12), -1, 1)  # eq. 8


def rest(here: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new`, but embeddings and their moments [C, e] only where `here` [C] holds."""

    def keep(path, a, b):
        return tree.where(here, a, b) if getattr(path[-1], "name", "") == "nu" else a

    return jax.tree_util.tree_map_with_path(keep, new, old)
