"""pFedLA (Ma et al., CVPR 2022, arXiv:2205.03993): layer-wise aggregation by hypernetworks.

  send    theta-_i = sum_j alpha_ilj theta_jl for each layer l,  alpha_i = h(v_i; psi_i)
  local   theta_i <- SGD on F_i from theta-_i;  Delta_i = theta-_i - theta_i
  server  keeps every client's last theta_i
          (v_i, psi_i) <- (v_i, psi_i) - server_lr (d theta-_i / d(v_i, psi_i))^T Delta_i

Each client has a hypernetwork h of its own on the server: three dense layers with ReLU, and a dense
layer for each l, whose outputs after ReLU are divided by their sum; if all are 0, the client keeps
its layer. With `private_layers`, HeurpFedLA, clients keep this number of layers, those of which
they have the largest shares alpha_ili. The formulas, sizes, learning rate and first weights, which
differ between clients only in v_i, are those of FL-bench. There layers are single arrays, shares
are compared before the division, Delta has the opposite sign in the step, and the server adds
theta_i - theta-_i to the last theta_i instead of replacing it. All participants of a round train at
the same time. A client predicts with theta-_i. Running statistics are mixed like parameters. For L
layers and C clients the server keeps C models and, in memory O(L C^2), the hypernetworks.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import streams, tree
from fedjax_lab.methods._sizes import check_pairs
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import checked, choice, log_uniform
from fedjax_lab.types import Array, Client, Method, PyTree, State, Task, Weights

RANGES = {"server_lr": log_uniform(1e-4, 0.1), "private_layers": choice(0, 1, 2)}
SIZE, DEPTH = 100, 3  # of an embedding and of a layer; layers of a hypernetwork


class Server(NamedTuple):
    """The server's state."""

    models: Weights  # theta_j, leaves [C, ...]
    psi: PyTree  # of each client, with its v_i: leaves [C, ...]


@checked("method")
def pfedla(task: Task, *, server_lr: float = 5e-3, private_layers: int = 0) -> Method:
    """server_lr: learning rate of the hypernetworks.

    private_layers: the number of layers that a client keeps in a round.
    """

    def init(key, num_clients):
        check_pairs("pfedla", num_clients)
        w = task.init(key)
        psi = first_hypernetworks(len(layers(w)), num_clients, streams.extra(key))
        return State(Server(tree.repeat(w, num_clients), psi), ())

    def send(server, id):
        return mixed(private_layers, server.models, tree.take(server.psi, id), id)

    method, step = fedavg(task), partial(aggregate, server_lr, private_layers)
    exchange = method.round[0]._replace(send=send, aggregate=step, alike=False)
    return method._replace(init=init, round=(exchange,), newcomer=None)


def layers(w: Weights) -> dict[str, int]:
    """Returns the numbers of the layers by their paths."""
    return {path: k for k, path in enumerate(dict.fromkeys(map(layer, tree.names(w))))}


def layer(name: str) -> str:
    """Returns the path of the layer of a leaf, such as 'Dense_0' of 'params/Dense_0/kernel'."""
    return name.split("/", 1)[1].rpartition("/")[0]


def first_hypernetworks(num_layers: int, num_clients: int, key: Array) -> PyTree:
    """Returns the first v_i and psi_i, leaves [C, ...]; the psi_i are equal."""
    k_v, k_heads, *keys = jax.random.split(key, 2 + 2 * DEPTH)
    psi = {
        "dense": [first_affine(keys[2 * i], keys[2 * i + 1], SIZE, SIZE) for i in range(DEPTH)],
        "heads": {
            "kernel": jax.random.uniform(k_heads, (num_layers, SIZE, num_clients)),
            "bias": jnp.zeros((num_layers, num_clients)),
        },
    }
    v = jax.random.normal(k_v, (num_clients, SIZE))
    return {"v": v, **tree.repeat(psi, num_clients)}


def shares(private_layers: int, psi_i: PyTree, id: Array) -> Array:
    """Returns alpha_i [L, C]."""
    h = psi_i["v"]
    for dense in psi_i["dense"]:
        h = jax.nn.relu(affine(dense, h))
    a = jax.nn.relu(jnp.einsum("h,lhc->lc", h, psi_i["heads"]["kernel"]) + psi_i["heads"]["bias"])
    total, alone = jnp.sum(a, 1, keepdims=True), jax.nn.one_hot(id, a.shape[1])
    alpha = jnp.where(total > 0, a / jnp.where(total > 0, total, 1), alone)
    order = jnp.argsort(-jax.lax.stop_gradient(alpha)[:, id])
    return alpha.at[order[:private_layers]].set(alone)


def mixed(private_layers: int, models: Weights, psi_i: PyTree, id: Array) -> Weights:
    """Returns theta-_i."""
    alpha, number = shares(private_layers, psi_i, id), layers(models)
    return tree.map_named(lambda name, a: tree.mix(alpha[number[layer(name)]], a), models)


def aggregate(lr: float, private_layers: int, server: Server, w: Weights, cohort: Client) -> Server:
    """Makes a step of the hypernetworks of the participants, and stores their models."""

    def step(of_client):
        psi_i, id, theta_i = of_client
        sent, pull = jax.vjp(
            lambda psi: mixed(private_layers, server.models, psi, id).params, psi_i
        )
        (g,) = pull(optax.tree.sub(sent, theta_i))
        return tree.add(psi_i, g, -lr)

    psi = jax.lax.map(step, (tree.take(server.psi, cohort.id), cohort.id, w.params))
    return Server(tree.put(server.models, cohort.id, w), tree.put(server.psi, cohort.id, psi))
