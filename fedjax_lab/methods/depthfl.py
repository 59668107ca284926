"""DepthFL (Kim et al., ICLR 2023, proceedings.iclr.cc): clients train the first blocks of a model.

  send    the weights of the client's first d_i blocks, with a classifier after each; t
  local   w_i <- SGD on  sum_{j <= d_i} CE(z_j, y)
                 + lambda_t / (d_i - 1) sum_{j != l} KL(softmax(z_l) || softmax(z_j))
          lambda_t = exp(-5 (1 - min(t, 300) / 300)^2)
  server  W_{t+1} = the mean of each weight over the clients that have it; W_t where nobody has

d_i = ceil(rho_i D) of D blocks, where rho_i is the client's capacity (config.partition.capacity).
softmax(z_l) is a constant. A model predicts with the mean of the logits z_j of its classifiers. The
paper combines this with FedDyn; here the mean is FedAvg's, uniform. Classifiers other than the
model's own are dense layers on the means over positions. All clients compute all blocks, with
weights of 0 in those that they do not have.
"""

import contextlib
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.methods._submodels import by_capacity, mean_of_holders, rate
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.models import layers
from fedjax_lab.models.parts import number
from fedjax_lab.models.task import inputs_of
from fedjax_lab.ranges import checked, uniform
from fedjax_lab.types import Array, Batch, Exchange, Method, Output, State, Task, Weights

RANGES = {"distill": uniform(0.0, 1.0)}
SIDE = "classifiers"  # the parameter with the additional classifiers


@checked("method")
def depthfl(task: Task, *, exits: tuple = (), distill: float = 1.0) -> Method:
    """exits: the layers whose inputs a further classifier sees, each the first of a block; (): all
    layers with kernels except for the first one and the head.

    distill: by what lambda_t is multiplied; 0: classifiers do not learn from each other.
    """
    losses.check_classes(task)
    exits = exits_of(task, exits)
    first, run = partial(with_classifiers, task, exits), partial(outputs, task, exits)
    has = partial(has_leaf, task, exits)
    depth_of, cut = partial(depth_with, len(exits) + 1), partial(cut_by, has)

    def local(message, client, work):
        (w_t, t), depth = message, depth_of(rate(client))
        loss = partial(loss_of_classifiers, task, run, depth, distill * ramp(t))
        return (cut(depth, work.train(cut(depth, w_t), loss)), depth), client.private

    def aggregate(server, uploads, cohort):
        (w_t, t), (w, depth) = server, uploads
        return mean_of_holders(partial(total, has(depth, w_t)), cohort.weight, w, w_t), t + 1

    def updates(message, id, upload):
        w, depth = upload
        return wire.model_references(cut(depth, message[0]), w), wire.KEPT

    def predict(message, client, x):
        z, _ = run(message[0], x)
        active = jnp.arange(len(z)) < depth_of(rate(client))
        return jnp.sum(jnp.where(active[:, None, None], z, 0), 0) / jnp.sum(active)

    shapes = jax.eval_shape(first, jax.random.key(0))
    method = fedavg(task)._replace(
        init=lambda key, num_clients: State((first(key), jnp.int32(0)), ()),
        round=(Exchange(send, local, aggregate, updates, alike=False),),
        predict=predict,
        sample=sampling.equal,
    )
    return method.having(
        absent=by_capacity(lambda capacity: absent(has(depth_of(capacity), shapes), shapes))
    )


def ramp(t: Array) -> Array:
    """lambda_t."""
    return jnp.exp(-5 * (1 - jnp.minimum(t, 300) / 300) ** 2)


def cut_by(has: Callable[[Array, Weights], Weights], depth: Array, w: Weights) -> Weights:
    """The weights with 0 in the blocks that a client with this depth does not have."""
    return jax.tree.map(jnp.multiply, w, has(depth, w))


def total(has: Weights, share: Array) -> Weights:
    """The sum of the shares of the clients that have each leaf; has: leaves [M]."""
    return jax.tree.map(lambda of_clients: jnp.sum(share * of_clients), has)


def absent(has: Weights, shapes: Weights) -> Array:
    """The bytes of the leaves that a client does not have."""
    sizes = jax.tree.map(tree.num_bytes, shapes)
    return tree.dot(jax.tree.map(lambda of_client: 1 - of_client, has), sizes)


def depth_with(depths: int, capacity: Array) -> Array:
    """The number of blocks of a client; 0: no limit."""
    return number(jnp.where(capacity > 0, capacity, 1), depths)


def loss_of_classifiers(
    task: Task,
    run: Callable[..., tuple[Array, Output]],
    depth: Array,
    factor: Array,
    w: Weights,
    batch: Batch,
    key: Array | None,
) -> tuple[Array, Output]:
    """The loss of a client with this depth, as `losses.Loss`; factor: lambda_t."""
    z, out = run(w, batch.x, key, batch.mask)
    active = jnp.arange(len(z)) < depth
    errors = jnp.stack([task.loss(each, batch) for each in z])
    apart = jax.vmap(losses.masked_mean, (0, None))(divergences(z, active), batch.mask)
    value = jnp.sum(jnp.where(active, errors, 0))
    return value + factor * jnp.sum(apart) / jnp.maximum(depth - 1, 1), out


def exits_of(task: Task, names: tuple) -> tuple[str, ...]:
    """The layers whose inputs the additional classifiers see, in the order of the model."""
    layers_with_kernels = [n for n in task.layers if n not in (*task.batch_norms, task.head)]
    possible = layers_with_kernels[1:]
    for name in names:
        if name not in possible:
            raise BadInput(f"config.method.exits: no layer {name!r}; {nearest(name, possible)}")
    return tuple(name for name in possible if name in (names or possible))


def has_leaf(task: Task, exits: tuple[str, ...], depth: Array, w: Weights) -> Weights:
    """Whether clients with this depth, [...], have each leaf of the weights, [...].

    A classifier belongs to the block before it, and weights of no layer are beside the head.
    """
    places = {layer: place for place, layer in enumerate(task.layers)}

    def one(name, _):
        _, path = name.split("/", 1)
        if path.startswith(SIDE):
            return int(path.split("/")[1]) < depth
        place = places.get(path.rpartition("/")[0], len(places))
        return sum(place >= places[layer] for layer in exits) < depth

    return tree.map_named(one, w)


def with_classifiers(task: Task, exits: tuple[str, ...], key: Array) -> Weights:
    """The model's first weights, with those of the additional classifiers."""
    w = task.init(key)
    x = jnp.zeros((1, *task.input_shape))
    sizes = jax.eval_shape(lambda: _features(task, exits, w, x)[0])
    side = {}
    for j, z in enumerate(sizes):
        k_kernel, k_bias = jax.random.split(jax.random.fold_in(key, 2 + j))
        side[str(j)] = layers.first_affine(k_kernel, k_bias, z.shape[-1], task.num_classes)
    return w._replace(params={**w.params, SIDE: side}) if side else w


def outputs(task, exits, w, x, key=None, mask=None):
    """The logits of all classifiers [D, B, K], the model's own last, and the `Output`."""
    side = w.params.get(SIDE, {})
    body = w._replace(params={name: a for name, a in w.params.items() if name != SIDE})
    features, out = _features(task, exits, body, x, key, mask)
    z = [layers.affine(side[str(j)], each) for j, each in enumerate(features)]
    return jnp.stack([*z, out.logits]), out


def _features(task, exits, w, x, key=None, mask=None):
    """What the additional classifiers see, [B, D] each, and the `Output`."""
    with contextlib.ExitStack() as during:
        seen = [during.enter_context(inputs_of(layer)) for layer in exits]
        out = task.apply(w, x, key, mask)
    return [losses.pooled(each[0]).astype(out.logits.dtype) for each in seen], out


def divergences(z: Array, active: Array) -> Array:
    """KL(softmax(z_l) || softmax(z_j)) of each example for all pairs l, j, [D * D, B].

    z: logits [D, B, K]. Pairs with a classifier that is not active [D] have 0.
    """
    log = jax.nn.log_softmax(z)
    constant = jax.lax.stop_gradient(log)[:, None]  # l
    each = jnp.sum(jnp.exp(constant) * (constant - log[None]), -1)  # [D, D, B]
    each = jnp.where((active[:, None] & active)[..., None], each, 0)
    return each.reshape(-1, each.shape[-1])
