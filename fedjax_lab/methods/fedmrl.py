"""FedMRL (Yi et al., NeurIPS 2024, arXiv:2406.00488): nested (Matryoshka) representations.

  send    w_t, the small model that all clients share, with d1 features
  local   (w, v_i, P_i) <- SGD on m_small CE(W_w r[:d1]) + m_own CE(W_v r),
          r = P_i [h_w, h_v]
          from (w_t, v_i, P_i), where h are features, of v_i d2 >= d1, and W are heads
  server  w_{t+1} = sum_i n_i/n w_i

The client's own model v_i and the projection P_i, a dense layer with d2 outputs, stay on the
client, which predicts by W_v r; all projections start alike. The small model has the net of
config.model.name, with its features pooled to d1 = d2 / ratio numbers; in the authors' code it has
fewer channels, and d1 = d2. All three are trained together, so that config.local.clip bounds their
joint gradient. A new client has no model.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import _heads
from fedjax_lab.methods._personal import train_together
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.models import unlike
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import checked, choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, Output, State, Task, Weights

RANGES = {"m_small": log_uniform(0.1, 10.0), "ratio": choice(1, 2, 4)}


@checked("method")
def fedmrl(task: Task, *, m_small: float = 1.0, m_own: float = 1.0, ratio: int = 2) -> Method:
    """m_small, m_own: weights of the losses of the small head and of the client's own.

    ratio: the features of v_i for one of the small model; 1: both have equally many.
    """
    losses.check_classes(task)
    d2 = jax.eval_shape(task.init, jax.random.key(0)).params[task.head]["kernel"].shape[0]
    if not 1 <= ratio <= d2:
        raise BadInput(f"config.method.ratio must be from 1 to the {d2} features, got {ratio}")
    d1 = d2 // ratio
    small = unlike.with_features(task.shared, d1)
    both = partial(nested, small, task)

    def init(key, num_clients):
        P = first_affine(*jax.random.split(streams.extra(key)), d1 + d2, d2)
        v = task.init(key)
        v = v._replace(params={**v.params, "projection": P})
        return State(small.init(key), tree.repeat(v, num_clients))

    def local(w_t, client, work):
        def loss(w, v, batch, key):
            (of_w, of_v), outs = both(w, v, batch.x, key, batch.mask)
            small_risk, own_risk = (losses.cross_entropy(o, batch) for o in (of_w, of_v))
            return m_small * small_risk + m_own * own_risk, outs

        return train_together(work, w_t, client.private, loss)

    return Method(
        init=init,
        round=(Exchange(send, local, aggregate),),
        predict=lambda w, client, x: both(w, client.private, x)[0][1],
        newcomer=None,
        sample=sampling.by_size,
    )


def nested(
    small: Task, task: Task, w: Weights, v: Weights, x: Array, key: Array | None = None, mask=None
) -> tuple[tuple[Array, Array], tuple[Output, Output]]:
    """Returns the logits and the outputs of the small model w and of the client's own model v."""
    outs = small.apply(w, x, key, mask), task.apply(v, x, key, mask)
    h = jnp.concatenate([losses.pooled(out.features) for out in outs], -1)
    r = affine(v.params["projection"], h)  # [B, d2]
    head, d1 = w.params["head"], outs[0].features.shape[-1]
    return (_heads.logits(head, r[:, :d1]), _heads.logits(v.params["head"], r)), outs
