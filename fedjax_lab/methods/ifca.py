"""IFCA (Ghosh et al., NeurIPS 2020, arXiv:2006.04088): iterative federated clustering.

  send    all K cluster models w_1 .. w_K
  local   k_i = argmin_k F_i(w_k);  w_i <- SGD on F_i from w_{k_i}      (Alg. 1)
  server  w_k = mean of the w_i with k_i = k                            (Alg. 1)

The paper's mean is uniform; FedConcat takes it by size (`by_size`). Running statistics are always
averaged by size. Clusters start from different weights. Ties go to the lower index. A cluster that
no client has chosen keeps its model. Every client, including new ones, is scored with the model
that fits its training data best.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedavg import send
from fedjax_lab.ranges import checked, choice
from fedjax_lab.types import Array, Client, Exchange, Method, State, Task, Weights, Work

RANGES = {"num_clusters": choice(2, 3, 4)}


@checked("method")
def ifca(
    task: Task,
    *,
    num_clusters: clusters.Number = 2,
    by_size: bool = False,
    distinct_starts: bool = True,
) -> Method:
    """num_clusters: K, the number of clusters.

    by_size: whether the models of a cluster are averaged by size instead of uniformly.
    distinct_starts: whether clusters start from different weights; not so in FedConcat's code.
    """
    risk = losses.risk(task)
    K = num_clusters

    def init(key, num_clients):
        clusters.check_number(K, num_clients)
        if distinct_starts:
            centers = clusters.distinct_starts(task, key, K)
        else:
            centers = tree.repeat(task.init(key), K)
        return State(centers, jnp.zeros(num_clients, int))

    def local(centers, client, work):
        k = choose(risk, centers, work)
        w = work.train(tree.take(centers, k), risk)
        return (k, w), k

    def aggregate(centers, uploads, cohort):
        k, w = uploads  # [M], leaves [M, ...]
        member = jax.nn.one_hot(k, K).T * cohort.arrived  # [K, M]
        by_n = member * cohort.n
        params = clusters.average(by_n if by_size else member, w.params, centers.params)  # Alg. 1
        return Weights(params, clusters.average(by_n, w.stats, centers.stats))

    def predict(centers, client, x):
        return task.apply(tree.take(centers, client.private), x).logits

    exchange, pick = (
        Exchange(send, local, aggregate, updates=updates, alike=False),
        partial(best, risk),
    )
    method = Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )
    return method._replace(tune=pick, join=pick)


def updates(centers, id, upload):
    """Marks the model as an update of its cluster's center, and the cluster's number as none."""
    k, w = upload
    return wire.kept(k), wire.model_references(tree.take(centers, k), w)


def best(risk: losses.Loss, centers: Weights, client: Client, work: Work) -> tuple[Weights, Array]:
    """Returns the models that a client predicts with, and the number of the best one."""
    return centers, choose(risk, centers, work)


def choose(risk: losses.Loss, centers: Weights, work: Work) -> Array:
    """Returns the cluster whose model has the lowest loss on the client's examples."""
    fit = work.mean(lambda batch: jax.vmap(lambda w: risk(w, batch, None)[0])(centers))  # [K]
    return jnp.argmin(fit)
