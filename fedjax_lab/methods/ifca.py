"""IFCA (Ghosh et al., NeurIPS 2020, arXiv:2006.04088).

  send    all K cluster models w_1 .. w_K
  local   k_i = argmin_k F_i(w_k);  w_i <- SGD on F_i from w_{k_i}      (Alg. 1)
  server  w_k = mean of the w_i with k_i = k                            (Alg. 1)

The paper's mean is uniform; FedConcat weighs it by size (`by_size`), as running statistics always
are. Clusters start from distinct inits; ties go to the lower index; a cluster that nobody picked
keeps its model. A client is scored on the model that fits its training data best.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedavg import send
from fedjax_lab.types import Exchange, Method, State, Task, Weights


def ifca(task: Task, *, num_clusters: int = 2, by_size: bool = False) -> Method:
    """num_clusters: K, at least 1."""
    if num_clusters < 1:
        raise BadInput(f"config.method.num_clusters must be at least 1, got {num_clusters}")
    risk = losses.risk(task)
    K = num_clusters

    def init(key, num_clients):
        # The first cluster starts where every other method does.
        others = [jax.random.fold_in(key, k) for k in range(1, K)]
        centres = [task.init(k) for k in (key, *others)]
        return State(jax.tree.map(lambda *a: jnp.stack(a), *centres), jnp.zeros(num_clients, int))

    def choose(centres, work):
        fit = work.mean(lambda batch: jax.vmap(lambda w: risk(w, batch)[0])(centres))  # [K]
        return jnp.argmin(fit)

    def local(centres, client, work):
        k = choose(centres, work)
        w = work.train(tree.take(centres, k), risk)
        return (k, w), k

    def aggregate(centres, uploads, cohort):
        k, w = uploads  # [M], leaves [M, ...]
        member = jax.nn.one_hot(k, K).T  # [K, M]

        def mean(share, leaves):
            share = member * share
            total = jnp.maximum(jnp.sum(share, 1, keepdims=True), 1e-9)
            return tree.mix(share / total, leaves)

        params = mean(cohort.n if by_size else 1.0, w.params)  # Alg. 1
        picked = jnp.sum(member, 1) > 0  # [K]
        return tree.where(picked, Weights(params, mean(cohort.n, w.stats)), centres)

    def tune(centres, client, work):
        return centres, choose(centres, work)

    def predict(centres, client, x):
        return task.apply(tree.take(centres, client.private), x).logits

    exchange = Exchange(send, local, aggregate)
    return Method(init, (exchange,), predict, None, sampling.by_size, tune)
