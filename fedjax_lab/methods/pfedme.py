"""pFedMe (Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848): Moreau envelopes.

  send    w_t
  local   for each batch: theta = argmin_theta F_i(theta) + lam/2 ||theta - w_i||^2, inexactly
                          w_i <- w_i - eta lam (w_i - theta)                       (Alg. 1)
  server  w_{t+1} = (1 - beta) w_t + beta sum_i n_i/n w_i

The argmin is `inner_steps` gradient steps on the batch from theta = w_i; the paper leaves open
where they start, and its code goes on from the last theta. eta, and what momentum there is, are
those of config.local. A client predicts with the theta of its last batch. In the paper all clients
train in every round, only those of the round do here; its mean is uniform, and its inner step is
tuned. Running statistics take the plain mean.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.errors import check_positive
from fedjax_lab.methods._personal import with_personal_models
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.ranges import log_uniform, uniform
from fedjax_lab.types import Exchange, Method, Task, Weights

RANGES = {
    "lam": log_uniform(1.0, 30.0),
    "inner_lr": log_uniform(1e-3, 0.1),
    "beta": uniform(0.5, 2.0),
}


def pfedme(
    task: Task,
    *,
    lam: float = 15.0,
    inner_steps: int = 5,
    inner_lr: float = 0.05,
    beta: float = 1.0,
) -> Method:
    """lam: how near theta stays to w_i; beta: the step of the server.

    inner_steps: steps of the descent to theta on each batch (the paper's K).
    inner_lr: the learning rate of that descent (the paper's personal one).
    """
    check_positive("method.lam", lam)
    check_positive("method.inner_steps", inner_steps)
    check_positive("method.inner_lr", inner_lr)
    check_positive("method.beta", beta)
    risk = losses.risk(task)

    def nearby(w, batch, key):
        """theta - w, the running statistics there, and the risk before the last step."""

        def step(_, carry):
            far, stats, _ = carry
            at_theta = jax.value_and_grad(
                lambda params: risk(Weights(params, stats), batch, key), has_aux=True
            )
            (value, out), gradient = at_theta(tree.add(w.params, far))
            far = tree.add(far, tree.add(gradient, far, lam), -inner_lr)
            return far, tree.typed_like(out.stats, stats), jnp.float32(value)

        start = tree.zeros(w.params), w.stats, jnp.float32(0)
        return jax.lax.fori_loop(0, inner_steps, step, start)

    def local(w_t, client, work):
        def envelope(w, batch, key):
            """Its gradient is lam (w - theta)."""
            here = Weights(jax.lax.stop_gradient(w.params), w.stats[0])
            far, stats, value = nearby(here, batch, key)
            back = tree.sub(tree.sub(w.params, here.params), far)  # w - theta, without its rounding
            theta = tree.add(here.params, far)
            return value + lam / 2 * tree.sq_norm(back), Weights((), (stats, theta))  # Alg. 1

        w, (stats, theta) = work.train(w_t._replace(stats=(w_t.stats, w_t.params)), envelope)
        return Weights(w, stats), Weights(theta, stats)

    def step(w_t, w, cohort):
        mean = aggregate(w_t, w, cohort)
        params = tree.add(tree.scale(1 - beta, w_t.params), mean.params, beta)
        return mean._replace(params=params)

    return with_personal_models(task, local)._replace(round=(Exchange(send, local, step),))
