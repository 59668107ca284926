"""pFedMe (Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848): Moreau envelopes.

  send    w_t
  local   for each batch: theta = argmin_theta F_i(theta) + lam/2 ||theta - w_i||^2, inexactly
                          w_i <- w_i - eta lam (w_i - theta)                       (Alg. 1)
  server  w_{t+1} = (1 - beta) w_t + beta sum_i n_i/n w_i

The argmin is approximated by `inner_steps` gradient steps on the batch from theta = w_i; the paper
does not give their starting point, and its code continues from the last theta. eta and momentum are
those of config.local. A client predicts with the theta of its last batch. In the paper all clients
train in every round; here only the clients of the round do. The paper's mean is uniform, and its
inner learning rate is tuned. Running statistics are averaged.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, tree
from fedjax_lab.methods._personal import with_personal_models
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.ranges import Positive, checked, log_uniform, uniform
from fedjax_lab.types import Exchange, Method, Task, Weights

RANGES = {
    "lam": log_uniform(1.0, 30.0),
    "inner_lr": log_uniform(1e-3, 0.1),
    "beta": uniform(0.5, 2.0),
}


@checked("method")
def pfedme(
    task: Task,
    *,
    lam: Positive[float] = 15.0,
    inner_steps: Positive[int] = 5,
    inner_lr: Positive[float] = 0.05,
    beta: Positive[float] = 1.0,
) -> Method:
    """lam: weight of the pull of theta to w_i; beta: the server's step along the mean update.

    inner_steps: gradient steps toward theta on each batch (the paper's K).
    inner_lr: the learning rate of these steps (the paper's personal learning rate).
    """
    risk = losses.risk(task)

    def nearby(w, batch, key):
        """Returns theta - w, the running statistics at theta, and the risk before the last step."""

        def step(_, carry):
            offset, stats, _ = carry
            at_theta = jax.value_and_grad(
                lambda params: risk(Weights(params, stats), batch, key), has_aux=True
            )
            (value, out), gradient = at_theta(tree.add(w.params, offset))
            offset = tree.add(offset, tree.add(gradient, offset, lam), -inner_lr)
            return offset, tree.typed_like(out.stats, stats), jnp.float32(value)

        start = tree.zeros(w.params), w.stats, jnp.float32(0)
        return jax.lax.fori_loop(0, inner_steps, step, start)

    def local(w_t, client, work):
        def envelope(w, batch, key):
            """The Moreau envelope, whose gradient is lam (w - theta)."""
            here = Weights(jax.lax.stop_gradient(w.params), w.stats[0])
            offset, stats, value = nearby(here, batch, key)
            # w - theta, without the rounding error of theta
            back = optax.tree.sub(optax.tree.sub(w.params, here.params), offset)
            theta = tree.add(here.params, offset)
            return value + lam / 2 * tree.sq_norm(back), Weights((), (stats, theta))  # Alg. 1

        w, (stats, theta) = work.train(w_t._replace(stats=(w_t.stats, w_t.params)), envelope)
        return Weights(w, stats), Weights(theta, stats)

    def step(w_t, w, cohort):
        mean = aggregate(w_t, w, cohort)
        params = tree.add(optax.tree.scale(1 - beta, w_t.params), mean.params, beta)
        return mean._replace(params=params)

    return with_personal_models(task, local)._replace(round=(Exchange(send, local, step),))
