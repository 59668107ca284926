"""FML (Shen et al., 2020, arXiv:2006.16765): federated mutual learning.

  send    w_t
  local   w_i <- SGD on beta F_i(w) + (1 - beta) KL(p_v || p_w) from w_t     the meme model
          v_i <- SGD on alpha F_i(v) + (1 - alpha) KL(p_w || p_v) from v_i   on the same batches
  server  w_{t+1} = sum_i n_i/n w_i

p_w and p_v are the class probabilities of the two models; each has no gradient in the loss of the
other model. The divergence is a mean over examples; PFLlib's is a mean over examples and classes. A
client predicts with v_i, which starts as the first global model. With config.model.kinds v_i has
the net of the client's kind, and w that of config.model.name. Both models are trained together, so
config.local.clip bounds their joint gradient.
"""

import jax
import optax

from fedjax_lab import losses
from fedjax_lab.methods._personal import train_together, with_personal_models
from fedjax_lab.ranges import Share, checked, uniform
from fedjax_lab.types import Array, Method, Task

RANGES = {"alpha": uniform(0.1, 1.0), "beta": uniform(0.1, 1.0)}


@checked("method")
def fml(task: Task, *, alpha: Share = 0.5, beta: Share = 0.5) -> Method:
    """alpha: weight of the labels in the loss of the personal model; 1 is Local.

    beta: weight of the labels in the loss of the shared model; 1 is FedAvg.
    """
    losses.check_classes(task)
    risk, risk_of_shared = losses.risk(task), losses.risk(task.shared)

    def local(w_t, client, work):
        def loss(w, v, batch, key):
            of_w, w_out = risk_of_shared(w, batch, key)
            of_v, v_out = risk(v, batch, key)
            w_from_v = divergence(v_out.logits, w_out.logits, batch.mask)
            v_from_w = divergence(w_out.logits, v_out.logits, batch.mask)
            shared = beta * of_w + (1 - beta) * w_from_v
            return shared + alpha * of_v + (1 - alpha) * v_from_w, (w_out, v_out)

        return train_together(work, w_t, client.private, loss)

    return with_personal_models(task, local, shared=task.shared)


def divergence(teacher: Array, student: Array, mask: Array) -> Array:
    """Returns mean KL(teacher || student) of logits [B, K]; the teacher gets no gradient."""
    p = jax.nn.softmax(jax.lax.stop_gradient(teacher))
    each = optax.losses.kl_divergence(jax.nn.log_softmax(student), p)
    return losses.masked_mean(each, mask)
