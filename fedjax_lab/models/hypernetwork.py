"""A network that generates another network's weights from an embedding (hFedF, Table 8; pFedHN).

f = A_4 act(A_3 act(A_2 act(A_1 nu + a_1) + a_2) + a_3) + a_4, and for each tensor l of the client's
model phi_l = W_l f + b_l, one head per tensor. W_l has the shape [width, *shape of tensor l].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab.models.layers import torch_uniform
from fedjax_lab.types import Array, PyTree

DEPTH = 4  # affine layers before the heads
Activation = Callable[[Array], Array]


class Hypernetwork(NamedTuple):
    """The weights theta of the hypernetwork."""

    layers: tuple  # of (A_k [in, out], a_k [out])
    kernel: PyTree  # W_l [width, *shape], a tree like the client's model
    bias: PyTree  # b_l [*shape], likewise


def first_weights(key: Array, target: PyTree, inputs: int, width: int) -> Hypernetwork:
    """Initial weights of all layers, as in PyTorch.

    target: the parameters of the client's model, or their shapes.
    inputs: the length of the embedding.
    width: the width of the layers.
    """
    k_layers, k_kernel, k_bias = jax.random.split(key, 3)
    sizes = [inputs] + DEPTH * [width]
    layers = []
    for k, (n, m) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        k_A, k_a = jax.random.split(jax.random.fold_in(k_layers, k))
        layers.append((torch_uniform(n)(k_A, (n, m)), torch_uniform(n)(k_a, (m,))))
    leaves, shape = jax.tree.flatten(target)

    def heads(key, lead):
        keys = jax.random.split(key, len(leaves))
        drawn = [
            torch_uniform(width)(k, (*lead, *a.shape)) for k, a in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(shape, drawn)

    return Hypernetwork(tuple(layers), heads(k_kernel, (width,)), heads(k_bias, ()))


def trunk(layers: tuple, nu: Array, activation: Activation) -> Array:
    """The features f [width] of an embedding nu [e]."""
    f = nu
    for k, (A, a) in enumerate(layers):
        f = (activation(f) if k else f) @ A + a
    return f


def generate(theta: Hypernetwork, nu: Array, activation: Activation) -> PyTree:
    """The parameters phi of the client's model for its embedding nu [e]."""
    f = trunk(theta.layers, nu, activation)
    return jax.tree.map(lambda W, b: jnp.tensordot(f, W, 1) + b, theta.kernel, theta.bias)


def embedding_size(num_clients: int) -> int:
    """The size e = floor(1 + N / 4) of the embedding of one of N clients."""
    return 1 + num_clients // 4


def inner_products(
    theta: Hypernetwork, nu: Array, delta: PyTree, activation: Activation, with_nu: bool
) -> Array:
    """The Gram matrix <g_i, g_j> [M, M] of the hypernetwork gradients of M clients.

    nu [M, e] are the clients' embeddings and delta [M, ...] their pseudo-gradients. The heads
    contribute <delta_i, delta_j> (1 + <f_i, f_j>), so that only the gradients of the trunk are
    computed explicitly. with_nu: whether the embeddings are trained, too.
    """
    full = jax.lax.Precision.HIGHEST

    def gram(leaves):
        flat = [a.reshape(len(a), -1) for a in jax.tree.leaves(leaves)]
        return sum(jnp.einsum("ip,jp->ij", a, a, precision=full) for a in flat)

    def back(W, d):  # W_l^T delta_i, [M, width]
        d, W = d.reshape(len(d), -1), W.reshape(len(W), -1)
        return jnp.einsum("ip,wp->iw", d, W, precision=full)

    r = sum(jax.tree.leaves(jax.tree.map(back, theta.kernel, delta)))

    def through_trunk(nu_i, r_i):
        f, pull = jax.vjp(lambda layers, nu: trunk(layers, nu, activation), theta.layers, nu_i)
        return f, *pull(r_i)

    f, by_layer, by_nu = jax.vmap(through_trunk)(nu, r)
    by_row = jnp.diag(jnp.sum(by_nu**2, 1)) if with_nu else 0.0  # each client has its own row of nu
    return gram(delta) * (1 + gram(f)) + gram(by_layer) + by_row
