"""FedPick (Zhu et al., 2023, arXiv:2307.13995): each client picks the features that it needs.

  send    theta_t = (phi^g, h^g), encoder and global head, without their BatchNorm layers
  local   psi_i = (V, h^p, h^u) and those BatchNorm layers are the client's own
          z^g = phi^g(x)
          z^l = V_2 ReLU(V_1 z^g)                           selection module, d -> d/2 -> d
          m^s = sigmoid((z^l + G' - G'') / tau)             Gumbel-Sigmoid, eq. 9
          m = 1[m^s >= 1/2], straight-through to m^s        noise off when scored
          z^p = m z^g, z^u = (1 - m) z^g                    relevant and irrelevant features
          L_gce = CE(h^g(z^g))                                                             (eq. 8)
          L_lce = CE(h^p(z^p))                                                            (eq. 11)
          L_ent = sum_c p^u log p^u, p^u = softmax(h^u(z^u)): entropy grows               (eq. 12)
          L_dis = KL(p^p || p^g) + KL(p^g || p^p)                                         (eq. 13)
          SGD on L_gce + lam_lce L_lce + lam_ent L_ent + lam_dis L_dis                    (eq. 15)
  server  theta_{t+1} = sum_i n_i/n theta_i
  predict argmax of h^g(z^g) + h^p(z^p)                                                   (eq. 14)

In the paper, eqs. 8 and 11 lack their minus sign, and Alg. 1 passes p^u to L_dis. G' - G'' is drawn
from one logistic distribution. Losses are means over the batch of sums over classes. The ablations
of Table IV are settings: w/o PFSM, which is FedBN, is mask=none, and a loss is removed by setting
its weight to 0. The network is in papers/fedpick/selection.py.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedbn import fedbn
from fedjax_lab.methods.fedper import head, partly_private
from fedjax_lab.papers.fedpick.selection import Picked, first_weights, pick
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Array, Method, Output, Task

RANGES = {"lam_ent": log_uniform(1e-5, 1e-2)}


@checked("method")
def fedpick(
    task: Task,
    *,
    head_layers: int = 1,
    tau: Positive[float] = 1.0,
    lam_lce: float = 1.0,
    lam_ent: float = 0.001,
    lam_dis: float = 1.0,
    mask: Literal["hard", "soft", "none"] = "hard",
    ensemble: Literal["logits", "probs", "none"] = "logits",
    share_bn: bool = False,
    share_selection: bool = False,
    detach_targets: bool = False,
) -> Method:
    """head_layers: h^g, h^p and h^u are this number of last dense layers, with all after them.

    tau: temperature of the gradient of the mask (of the mask itself, if it is soft).
    lam_lce: weight of L_lce. lam_ent: weight of L_ent. lam_dis: weight of L_dis. The defaults are
    the paper's for Office-Caltech-10 and DomainNet; for digits the paper takes 10 for tau, lam_lce
    and lam_dis, which needs a small learning rate.
    mask: the mask of the features: hard, soft, or none (w/o PFSM).
    ensemble: how the two heads are combined in predictions: logits or probs are added; none: only
    h^g predicts.
    share_bn: whether the BatchNorm layers of phi^g and h^g are averaged as well.
    share_selection: whether psi is averaged as well.
    detach_targets: whether the first argument of each KL divergence gets no gradient.
    """
    layers = head(task, head_layers)
    if mask == "none":
        if share_bn or share_selection:
            raise BadInput("config.method.mask=none needs share_bn=False and share_selection=False")
        return fedbn(task)

    pick_from = partial(pick, task, layers, tau=tau, soft=mask == "soft")

    def loss(w, batch, key):
        out = pick_from(w, batch.x, key, batch.mask)
        l_gce = losses.cross_entropy(out.a_g, batch)  # eq. 8
        l_lce = losses.cross_entropy(out.a_p, batch)  # eq. 11
        l_ent = losses.masked_mean(negative_entropy(out.a_u), batch.mask)
        l_dis = losses.masked_mean(distance(out.a_p, out.a_g, detach_targets), batch.mask)
        total = l_gce + lam_lce * l_lce + lam_ent * l_ent + lam_dis * l_dis  # eq. 15
        return total, Output(out.a_g, out.z_g, out.stats)

    def apply(w, x):
        out = pick_from(w, x)
        return Output(together(out, ensemble), out.z_g, out.stats)

    picker = task._replace(init=partial(first_weights, task, layers), apply=apply)
    private = partial(stays, task.batch_norms, share_bn, share_selection)
    return partly_private(picker, private, lambda w, work: work.train(w, loss))


def stays(norms: tuple[str, ...], share_bn: bool, share_selection: bool, name: str) -> bool:
    """Returns whether the leaf of this name stays on the client."""
    _, part, layer = name.split("/", 2)
    norm = any(layer.startswith(norm + "/") for norm in norms)
    return norm and not share_bn if part == "net" else norm or not share_selection


def together(out: Picked, ensemble: str) -> Array:
    """Returns the logits of the prediction; ensemble: as in `fedpick`."""
    if ensemble == "none":
        return out.a_g
    if ensemble == "logits":
        return out.a_g + out.a_p  # eq. 14
    p = jax.nn.softmax(out.a_g) + jax.nn.softmax(out.a_p)
    return jnp.log(p / 2 + 1e-30)


def negative_entropy(a_u: Array) -> Array:
    """Returns sum_c p^u_c log p^u_c [B] of logits [B, C], from -log C to 0."""
    log_p = jax.nn.log_softmax(a_u)
    return jnp.sum(jnp.exp(log_p) * log_p, -1)  # eq. 12


def distance(a_p: Array, a_g: Array, detach_targets: bool = False) -> Array:
    """Returns KL(p^p || p^g) + KL(p^g || p^p) [B] of logits [B, C]."""

    def kl(a, b):
        a = jax.lax.stop_gradient(a) if detach_targets else a
        log_p, log_q = jax.nn.log_softmax(a), jax.nn.log_softmax(b)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)

    return kl(a_p, a_g) + kl(a_g, a_p)  # eq. 13
