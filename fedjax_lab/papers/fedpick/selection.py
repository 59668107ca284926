"""FedPick's network: an encoder, a module that selects its features, and three heads.

z^g = phi^g(x);  z^l = V_2 ReLU(V_1 z^g);  m^s = sigmoid((z^l + noise) / tau)  (eq. 9);
m = 1[m^s >= 1/2] with the gradient of m^s;  z^p = m z^g;  z^u = (1 - m) z^g.
"""

from typing import NamedTuple

import jax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.types import Array, Task, Weights


class Picked(NamedTuple):
    """Features, masks and logits of a batch."""

    z_g: Array  # [B, d]
    z_l: Array  # [B, d]
    m: Array  # [B, d]
    a_g: Array  # [B, C]
    a_p: Array  # [B, C]
    a_u: Array  # [B, C]
    stats: dict


def first_weights(task: Task, layers: tuple[str, ...], key: Array) -> Weights:
    """Returns the first weights of all parts.

    net is phi^g and h^g, with the same first weights as in other methods; select is V; relevant and
    irrelevant are h^p and h^u.
    """
    net, *heads = (task.init(k) for k in (key, *map(jax.random.fold_in, [key] * 2, [1, 2])))
    relevant, irrelevant = (tree.split(tree.within(layers), w)[0] for w in heads)
    d = tree.at(net.params, layers[0])["kernel"].shape[0]
    if d < 2:
        raise BadInput(f"fedpick needs a model with at least 2 features to select from, not {d}")
    keys = jax.random.split(jax.random.fold_in(key, 3), 4)
    shapes = {"V_1": (d, d // 2), "V_2": (d // 2, d)}
    select = {
        name: first_affine(keys[2 * i], keys[2 * i + 1], *shape)
        for i, (name, shape) in enumerate(shapes.items())
    }
    parts = {"net": net, "relevant": relevant, "irrelevant": irrelevant}
    params = {name: w.params for name, w in parts.items()} | {"select": select}
    return Weights(params, {name: w.stats for name, w in parts.items()})


def pick(
    task: Task,
    layers: tuple[str, ...],
    w: Weights,
    x: Array,
    key: Array | None = None,
    rows: Array | None = None,
    *,
    tau: float,
    soft: bool = False,
) -> Picked:
    """Applies phi^g, V and the three heads to one batch.

    x: [B, ...] the examples.
    key: of the random numbers in training mode; None: evaluation mode.
    rows: [B] 1 for real examples, 0 for padding.
    tau: temperature of the mask.
    soft: whether the mask is m^s instead of m.
    """
    net, relevant, irrelevant = (
        Weights(w.params[name], w.stats[name]) for name in ("net", "relevant", "irrelevant")
    )
    k_p, k_u, k_noise = (key if key is None else jax.random.fold_in(key, i) for i in range(3))
    out = task.apply_at(layers[0], net, x, None, key, rows)
    z_g = out.features
    V = w.params["select"]
    z_l = affine(V["V_2"], jax.nn.relu(affine(V["V_1"], z_g)))
    m = mask(z_l, k_noise, tau, soft)
    body = tree.split(tree.within(layers), net)[1]

    def classify(head, z, k):
        after = task.apply_at(layers[0], tree.join(head, body), x, z, k, rows)
        return after.logits, tree.split(tree.within(layers), head._replace(stats=after.stats))[0]

    a_p, new_p = classify(relevant, z_g * m, k_p)
    a_u, new_u = classify(irrelevant, z_g * (1 - m), k_u)
    stats = {"net": out.stats, "relevant": new_p.stats, "irrelevant": new_u.stats}
    return Picked(z_g=z_g, z_l=z_l, m=m, a_g=out.logits, a_p=a_p, a_u=a_u, stats=stats)


def mask(z_l: Array, key: Array | None, tau: float, soft: bool) -> Array:
    """Returns m [B, d], or m^s if `soft`. There is noise only with a key."""
    noisy = z_l if key is None else z_l + jax.random.logistic(key, z_l.shape)
    m_s = jax.nn.sigmoid(noisy / tau)  # eq. 9
    hard = (noisy >= 0).astype(m_s.dtype)
    return m_s if soft else hard + (m_s - jax.lax.stop_gradient(m_s))  # straight-through
