"""FedConcat-ID and -IB (Diao et al., AAAI 2024, arXiv:2312.06290): infer label distributions.

  first       all clients: w_i <- SGD on F_i from w_0, the first of T_1 rounds
              p_i = 1/R sum_r softmax(f_i(x_r)), x_r uniform noise      (eq. 3)
              p_i = (b_i - b_0) / (s eta) + softmax(b_0), b the last bias (-IB, appendix D)
              k-means of all p_i; the w_i are averaged inside their clusters
  then        as FedConcat

The noise is scaled like the data, and the models are in evaluation mode. -IB follows the paper's
formula; in the released code b_0 is an alias of b_i, so that p_i = softmax(b_i). s is the number of
steps and eta the learning rate. As in the paper, the formula ignores that b moves further with
momentum.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.task import check_bias
from fedjax_lab.papers.fedconcat.communication import split_rounds
from fedjax_lab.papers.fedconcat.concatenation import (
    Clusters,
    concatenation,
    decayed,
    inside_clusters,
)
from fedjax_lab.ranges import Positive, checked, choice
from fedjax_lab.types import Array, Client, Method, Stage, Stages, State, Task, Weights

RANGES = {"num_clusters": choice(2, 3, 5)}

BATCH = 100  # noise images per batch


@checked("method")
def fedconcat_id(
    task: Task,
    *,
    num_clusters: clusters.Number | Literal["elbow"] = 5,
    encoder_rounds: int = 0,
    classifier_rounds: int = 0,
    infer_from: Literal["outputs", "bias"] = "outputs",
    num_noise: Positive[int] = 10_000,
    balanced: bool = False,
    encoder_decay: float = 0.0,
    classifier_init: Literal["random", "clusters"] = "random",
    feature_cache: Literal["exact", "clean"] = "exact",
) -> Stages:
    """num_clusters: K, or "elbow", which chooses K by the elbow method.
    encoder_rounds: T_1, the rounds of encoder training; 0: the same default as in fedconcat.
    classifier_rounds: T_2, the rounds of classifier training; 0: the same default as in fedconcat.
    balanced, encoder_decay, classifier_init, feature_cache: the same as in fedconcat.
    infer_from: the source of the label distributions: outputs (-ID) or bias (-IB).
    num_noise: R, the number of noise images; above 100 it is rounded up to a multiple of 100.
    """
    check_bias(task, "fedconcat_id")
    losses.check_classes(task)
    if encoder_rounds == 1:
        raise BadInput("config.method.encoder_rounds must be at least 2: round 1 forms clusters")

    noise = num_noise if infer_from == "outputs" else 0
    prepare = partial(by_models, task, num_clusters, balanced, noise)

    def stages(rounds):
        T_1, T_2 = split_rounds(
            task, rounds, num_clusters, encoder_rounds, classifier_rounds, least=2
        )
        inside = inside_clusters(task, encoder_decay)
        return (
            Stage("first", first_round(task, num_clusters, encoder_decay), 1, reliable=True),
            Stage(name="encoders", method=inside, rounds=T_1 - 1, prepare=prepare, start=means),
            concatenation(task, T_2, classifier_init, feature_cache),
        )

    return stages


def by_models(
    task: Task,
    num_clusters: int | str,
    balanced: bool,
    num_noise: int,
    key: Array,
    population: Client,
    last: State,
) -> dict[str, np.ndarray]:
    """The `prepare` of stage 2: clusters clients by outputs on noise; num_noise=0: by biases."""
    models, p = last.private
    k_noise, k_clusters = jax.random.split(key)
    if num_noise:
        p = mean_outputs(task, models, k_noise, num_noise)
    rng = clusters.generator(k_clusters)
    facts = clusters.form(np.asarray(p), num_clusters, balanced, rng)
    return facts | {"n": np.asarray(population.n)}


def means(key: Array, num_clients: int, last: State, facts: dict[str, Array]) -> State:
    """The `start` of stage 2: the models of the first round, averaged inside their clusters."""
    models, _ = last.private
    share = facts["member"] * facts["n"]  # [K, C]
    centers = clusters.average(share, models, tree.repeat(last.server, len(share)))
    return State(Clusters(centers, facts["member"]), ())


def first_round(task: Task, num_clusters: int | str, decay: float = 0.0) -> Method:
    """FedAvg of all clients that keeps each client's model and its label distribution by -IB."""
    risk = losses.risk(task)

    def init(key, num_clients):
        clusters.check_number(num_clusters, num_clients)
        w_0 = task.init(key)
        return State(w_0, tree.repeat((w_0, jnp.zeros(task.num_classes)), num_clients))

    def local(w_0, client, work):
        w_i = work.train(w_0, risk, optimizer=decayed(work.optimizer, decay))
        eta = optim.reach(work.optimizer, 1)
        return w_i, (w_i, from_bias(w_0, w_i, work.steps * eta))

    return fedavg(task, local)._replace(init=init, sample=sampling.all_clients)


def from_bias(w_0: Weights, w_i: Weights, distance: Array) -> Array:
    """Returns -IB's label distribution [classes]; distance: s eta."""
    b_0, b_i = (w.params["head"]["bias"] for w in (w_0, w_i))
    return (b_i - b_0) / distance + jax.nn.softmax(b_0)


def noise(task: Task, key: Array, count: int) -> Array:
    """Returns random inputs [count, ...], uniform within the bounds of the model's inputs."""
    lowest, highest = task.bounds
    unit = jax.random.uniform(key, (count, *task.input_shape), jnp.float32)
    return lowest + unit * (highest - lowest)


def mean_outputs(task: Task, models: Weights, key: Array, num_noise: int) -> Array:
    """Returns -ID's label distributions [C, classes] of stacked models: eq. 3 on the same noise."""
    size = min(BATCH, num_noise)
    keys = jax.random.split(key, -(-num_noise // size))

    def one(w):
        def batch(k):
            return jnp.mean(jax.nn.softmax(task.apply(w, noise(task, k, size)).logits), 0)

        return jnp.mean(jax.lax.map(batch, keys), 0)  # eq. 3

    return jax.jit(lambda models: jax.lax.map(one, models))(models)
