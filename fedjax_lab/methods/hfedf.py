"""hFedF (Bartholet et al., 2024, arXiv:2402.06974): a hypernetwork generates the clients' models.

  send    phi_i = h(nu_i; theta)
  local   phi~_i <- SGD on F_i from phi_i;  delta_i = phi_i - phi~_i
  server  g_i = (d phi_i / d(theta, nu))^T delta_i
          gamma_i = cos(mean_j g_j, g_i)                                                   (eq. 8)
          g = sum_i softmax(gamma)_i g_i: GradAlign                                        (eq. 9)
          (theta, nu) <- Adam((theta, nu), g), its weight decay in the gradient
          after a warm-up, EMA: x <- ema x + (1 - ema) x_EMA, x_EMA <- x                  (Alg. 4)

In the paper, delta has the opposite sign, which would be gradient ascent, and eq. 9 has a minus
sign, which contradicts the text and Alg. 3. The g_i are never computed, only their inner products.
Running statistics, if the model has any, are averaged by size and sent with the model. A new client
gets the model of the mean embedding.
"""

from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.models import hypernetwork
from fedjax_lab.models.hypernetwork import embedding_size, generate
from fedjax_lab.papers.hfedf.client_embeddings import embed
from fedjax_lab.ranges import OneOf, Share, checked, choice, log_uniform
from fedjax_lab.types import (
    Array,
    Client,
    Exchange,
    Method,
    PyTree,
    Stage,
    Stages,
    State,
    Task,
    Weights,
)

RANGES = {
    "server_lr": log_uniform(1e-3, 0.1),
    "server_decay": log_uniform(1e-5, 1e-3),
    "ema": choice(0.75, 0.85, 0.95),
}

WIDTH = 50  # of the hypernetwork's layers
AUTOENCODED = "autoencoder", "autoencoder_learned"  # embeddings that a separate stage computes
ACTIVATION = partial(jax.nn.leaky_relu, negative_slope=0.01)


class Trained(NamedTuple):
    """The weights that the server trains."""

    theta: hypernetwork.Hypernetwork
    nu: Array  # [C, e]


class Server(NamedTuple):
    """The server's state."""

    x: Trained
    average: PyTree  # x_EMA if training does not continue from it, otherwise ()
    moments: PyTree  # of Adam
    t: Array  # the number of rounds so far
    weight: Array  # [C] softmax(gamma) of the last round, 0 for clients that did not take part
    stats: PyTree  # running statistics
    key: Array  # of the random embeddings


class Update(NamedTuple):
    """The server's update after a round, by the settings of `hfedf`."""

    adam: optax.GradientTransformation
    clip: float
    grad_align: bool
    align_nu: bool
    ema: float
    ema_warmup: int
    shadow: bool
    learned: bool  # embeddings are trained
    random: bool  # embeddings are redrawn after every round
    nu_lazy: bool


@checked("method")
def hfedf(
    task: Task,
    *,
    server_lr: float = 1e-3,
    server_decay: float = 1e-5,
    grad_align: bool = True,
    align_nu: bool = True,
    ema: Share = 0.95,
    ema_warmup: int = 10,
    ema_mode: Literal["feedback", "shadow"] = "feedback",
    embedding: Annotated[str, OneOf(("learned", "random", *AUTOENCODED))] = "learned",
    embedding_dim: int = 0,
    start: Literal["torch", "client"] = "torch",
    clip: float = 0.0,
    nu_lazy: bool = False,
) -> Method | Stages:
    """server_lr: learning rate of Adam on theta and nu.

    server_decay: weight decay of Adam on theta and nu.

    grad_align: whether GradAlign weighs the g_i; otherwise g is their uniform mean.
    align_nu: whether the cosines include the gradients of nu.
    ema: weight of the new x in the moving average; 1: no average.
    ema_warmup: the last round that is not averaged, counted from 0.
    ema_mode: feedback (training continues from the average); shadow (the average is only scored).
    embedding: how nu is made: learned; random: redrawn after every round, never trained;
    autoencoder: computed in a separate first round (papers/hfedf/), never trained;
    autoencoder_learned: computed in the same way, then trained.
    embedding_dim: e, the size of an embedding; 0: floor(1 + C / 4).
    start: torch: PyTorch's first weights of the hypernetwork; client: the biases of its heads are
    the first weights of a client model, and the kernels of its heads are scaled by 0.1.
    clip: the largest norm of g; 0: no clipping.
    nu_lazy: whether embeddings (and their moments) of clients that do not take part stay the same.
    """
    if embedding in AUTOENCODED and not embedding_dim:
        raise BadInput(f"config.method.embedding={embedding} needs config.method.embedding_dim")
    update = Update(
        adam=optim.adam(server_lr, server_decay),
        clip=clip,
        grad_align=grad_align,
        align_nu=align_nu,
        ema=ema,
        ema_warmup=ema_warmup,
        shadow=ema_mode == "shadow",
        learned=embedding.endswith("learned"),
        random=embedding == "random",
        nu_lazy=nu_lazy,
    )
    method = Method(
        init=partial(first_state, task, update, embedding_dim, start),
        round=(exchange(task, update),),
        predict=lambda phi, client, x: task.apply(phi, x).logits,
        newcomer=newcomer,
        sample=sampling.by_size,
        scored=scored,
        record=lambda state: {"weight": state.server.weight, "embedding": state.server.x.nu},
    )
    if embedding not in AUTOENCODED:
        return method

    def stages(rounds):
        train = Stage("train", method, rounds, start=partial(from_embeddings, method.init))
        return embed(task, embedding_dim), train

    return stages


# The first state.


def first_state(
    task: Task, update: Update, embedding_dim: int, start: str, key: Array, num_clients: int
) -> State:
    """Returns the first state, with random theta and nu; settings as in `hfedf`."""
    w = task.init(key)
    k_theta, k_nu, k_rest = jax.random.split(jax.random.fold_in(key, 1), 3)
    e = embedding_dim or embedding_size(num_clients)
    theta = hypernetwork.first_weights(k_theta, w.params, e, WIDTH)
    if start == "client":
        theta = theta._replace(kernel=optax.tree.scale(0.1, theta.kernel), bias=w.params)
    x = Trained(theta, jax.random.normal(k_nu, (num_clients, e)))
    server = Server(
        x=x,
        average=x if update.shadow else (),
        moments=update.adam.init(x),
        t=jnp.int32(0),
        weight=jnp.zeros(num_clients),
        stats=w.stats,
        key=k_rest,
    )
    return State(server, ())


def from_embeddings(init, key: Array, num_clients: int, last: State, facts: dict) -> State:
    """Returns the first state, with the embeddings nu that the previous stage has computed."""
    state = init(key, num_clients)
    x = state.server.x._replace(nu=last.server[1])
    x_EMA = x if state.server.average else ()
    return state._replace(server=state.server._replace(x=x, average=x_EMA))


# The models of the clients.


def model(x: Trained, id: Array) -> PyTree:
    """Returns phi_i, the parameters of this client's model."""
    return generate(x.theta, x.nu[id], ACTIVATION)


def send(server: Server, id: Array) -> Weights:
    """Sends phi_i, generated from the weights that are trained."""
    return Weights(model(server.x, id), server.stats)


def final(server: Server) -> Trained:
    """Returns the weights that are scored: x_EMA if there is one."""
    return server.average or server.x


def scored(server: Server, id: Array) -> Weights:
    """Returns phi_i, generated from the weights that are scored."""
    return Weights(model(final(server), id), server.stats)


def newcomer(state: State) -> tuple[Weights, tuple]:
    """Returns the model of the mean embedding."""
    theta, nu = final(state.server)
    return Weights(generate(theta, jnp.mean(nu, 0), ACTIVATION), state.server.stats), ()


def exchange(task: Task, update: Update) -> Exchange:
    """Returns the exchange of each round."""
    local, server = pseudo_gradient(task), partial(aggregate, update)
    return Exchange(send, local, server, updates=updates, alike=False)


def updates(phi: Weights, id: Array, upload: Weights) -> Weights:
    """Marks the uploads of `pseudo_gradient` as updates themselves."""
    return wire.update_references(upload)


def pseudo_gradient(task: Task):
    """Returns the `local` that uploads delta_i = phi_i - phi~_i, with its running statistics."""
    risk = losses.risk(task)

    def local(phi, client, work):
        after = work.train(phi, risk)
        return Weights(optax.tree.sub(phi.params, after.params), after.stats), ()

    return local


# The server: align, pull back, step, average, redraw.


def aggregate(update: Update, server: Server, uploads: Weights, cohort: Client) -> Server:
    """Computes the server's state after a round."""
    ids, delta, x = cohort.id, uploads.params, server.x
    share = cohort.arrived / jnp.sum(cohort.arrived)
    if update.grad_align:
        gamma = align(x, ids, delta, update.align_nu and update.learned)
        share = jax.nn.softmax(jnp.where(cohort.arrived, gamma, -jnp.inf))  # eq. 9
    g = pull_back(x, ids, share, delta)
    after, moments = step(update, x, server.moments, g, ids)
    x_EMA = average(update.ema, server.t > update.ema_warmup, after, final(server))
    shadow: PyTree
    x, shadow = (after, x_EMA) if update.shadow else (x_EMA, ())
    if update.random:
        key = jax.random.fold_in(server.key, server.t)
        x, shadow = (redraw(key, part) if part else part for part in (x, shadow))
    stats = tree.mix(cohort.n / jnp.sum(cohort.n), uploads.stats)
    weight = jnp.zeros(len(x.nu)).at[ids].set(share)
    return Server(
        x=x,
        average=shadow,
        moments=moments,
        t=server.t + 1,
        weight=weight,
        stats=stats,
        key=server.key,
    )


def align(x: Trained, ids: Array, delta: PyTree, with_nu: bool) -> Array:
    """Returns GradAlign's gamma [M]; with_nu: the cosines include gradients of embeddings."""
    gram = hypernetwork.inner_products(x.theta, x.nu[ids], delta, ACTIVATION, with_nu)
    return alignment(gram)


def alignment(gram: Array) -> Array:
    """Returns the cosine [M] of each g_i with their mean, from the inner products [M, M]."""
    length = jnp.sqrt(jnp.maximum(jnp.mean(gram), 0)) * jnp.sqrt(jnp.diag(gram))
    return jnp.clip(jnp.mean(gram, 1) / (length + 1e-12), -1, 1)  # eq. 8


def pull_back(x: Trained, ids: Array, share: Array, delta: PyTree) -> Trained:
    """Returns g = sum_i share_i g_i, by one backward pass through the hypernetwork."""
    _, pull = jax.vjp(lambda x: jax.vmap(partial(model, x))(ids), x)
    return pull(jax.vmap(optax.tree.scale)(share, delta))[0]


def step(
    update: Update, x: Trained, moments: PyTree, g: Trained, ids: Array
) -> tuple[Trained, PyTree]:
    """Returns (x, moments) after a step of Adam with the gradient g of the clients `ids`."""
    g = g if update.learned else g._replace(nu=jnp.zeros_like(g.nu))
    updates, after = update.adam.update(optim.clip(g, update.clip), moments, x)
    new = optax.apply_updates(x, updates), after
    if update.learned and not update.nu_lazy:
        return new
    moving = jnp.zeros(len(x.nu), bool).at[ids].set(update.learned)
    return rest(moving, new, (x, moments))


def rest(moving: Array, new: PyTree, old: PyTree) -> PyTree:
    """Returns `new`, with the old embeddings and moments where `moving` does not hold."""

    def keep(path, a, b):
        return tree.where(moving, a, b) if getattr(path[-1], "name", "") == "nu" else a

    return jax.tree_util.tree_map_with_path(keep, new, old)


def average(ema: float, warm: Array, new: Trained, old: Trained) -> Trained:
    """Returns x_EMA, or `new` during the warm-up, while `warm` does not hold."""
    mean = jax.tree.map(lambda a, b: ema * a + (1 - ema) * b, new, old)  # Alg. 4
    return tree.where(warm, mean, new)


def redraw(key: Array, x: Trained) -> Trained:
    """Returns x with new random embeddings."""
    return x._replace(nu=jax.random.normal(key, x.nu.shape))
