"""FedConcat (Diao et al., AAAI 2024, arXiv:2312.06290): concatenates encoders of client clusters.

  1  cluster     p_i = label distribution of client i          (eq. 2)
                 with Laplace noise, epsilon-DP                (eq. 14)
                 k-means of all p_i: the cluster a(i)
  2  encoders    T_1 rounds of FedAvg inside each cluster k: (theta^k, phi^k)
     send        (theta^a(i), phi^a(i))
     local       SGD on F_i
     server      mean by size over the cluster's participants
  3  classifier  T_2 rounds for one linear Phi on h(x) = [theta^1(x), ..., theta^K(x)]
     once        theta^1 .. theta^K to every client, frozen from then on
     send        Phi
     local       3 batches of SGD on F_i
     server      uniform mean: all clients make the same number of steps

`clustering` replaces steps 1 and 2 by IFCA, FeSEM or FedSoft (Table 4), or makes every client a
cluster (Fig. 3). IFCA scores each cluster's model by the mean loss over a client's examples; the
released code takes the mean of the batches' means, in which a shorter last batch counts like the
others. The models of all clusters of step 1 start from the same weights. Frozen encoders run in
evaluation mode (in the released code dropout and batch statistics stay active). Stages 2 and 3 are
in papers/fedconcat/concatenation.py.
"""

from functools import partial
from typing import Literal

import numpy as np

from fedjax_lab import losses, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedsoft import fedsoft
from fedjax_lab.methods.fesem import fesem
from fedjax_lab.methods.ifca import ifca
from fedjax_lab.models.task import check_bias
from fedjax_lab.papers.fedconcat.communication import split_rounds
from fedjax_lab.papers.fedconcat.concatenation import Clusters, concatenation, inside_clusters
from fedjax_lab.ranges import checked, choice
from fedjax_lab.types import Array, Client, Method, Stage, Stages, State, Task

RANGES = {"num_clusters": choice(2, 3, 5)}


@checked("method")
def fedconcat(
    task: Task,
    *,
    num_clusters: clusters.Number | Literal["elbow"] = 5,
    encoder_rounds: int = 0,
    classifier_rounds: int = 0,
    clustering: Literal["labels", "none", "ifca", "fesem", "fedsoft"] = "labels",
    epsilon: float = 0.0,
    balanced: bool = False,
    encoder_decay: float = 0.0,
    classifier_init: Literal["random", "clusters"] = "random",
    feature_cache: Literal["exact", "clean"] = "exact",
) -> Stages:
    """The run has T_1 + T_2 rounds, and the cost of T = config.run.rounds of FedAvg (section 4.3).

    num_clusters: K, or "elbow", which chooses K by the elbow method. Unless balanced, clients with
    equal label distributions are in the same cluster.
    encoder_rounds: T_1, the rounds of encoder training; 0: 31/50 of T, as in the paper.
    classifier_rounds: T_2, the rounds of classifier training; 0: computed from T by the paper's
    cost formula, which assumes that all clients take part and that each sends one model per round;
    it takes K = 5 where num_clusters is "elbow", and ignores `clustering`.
    clustering: how clusters are formed: labels, none (each client is a cluster), or ifca, fesem,
    fedsoft with their default settings.
    epsilon: epsilon of the differential privacy of the label distributions; 0: they are sent
    without noise.
    balanced: whether clusters have at most 1.2 C / K clients, rounded down, or C / K rounded up if
    that is larger (as in the paper's runs on CIFAR-100 and Tiny-ImageNet).
    encoder_decay: weight decay of stage 2 in addition to config.local.weight_decay.
    classifier_init: the first weights of Phi: random, or clusters, which concatenates the heads of
    the clusters and sums their biases.
    feature_cache: how h(x) is computed: exact: once, or in every batch if training images are
    augmented; clean: always once, without augmentation.
    """
    unused = {"epsilon": epsilon, "balanced": balanced} if clustering != "labels" else {}
    if clustering not in ("labels", "none"):
        unused |= {"encoder_decay": encoder_decay}
    for name in (name for name, value in unused.items() if value):
        raise BadInput(f"config.method.{name} cannot be combined with clustering={clustering}")
    check_bias(task, "fedconcat")
    losses.check_classes(task)
    form = partial(by_labels, num_clusters, balanced, epsilon)
    prepare = alone if clustering == "none" else form

    def stages(rounds):
        T_1, T_2 = split_rounds(task, rounds, num_clusters, encoder_rounds, classifier_rounds)
        if clustering in ("labels", "none"):
            method = inside_clusters(task, encoder_decay)
            encoders = Stage(
                name="encoders",
                method=method,
                rounds=T_1,
                prepare=prepare,
                start=partial(one_start, task),
            )
        else:
            encoders = Stage("encoders", other(task, clustering, num_clusters), T_1)
        return encoders, concatenation(task, T_2, classifier_init, feature_cache)

    return stages


def label_shares(population: Client) -> np.ndarray:
    """Returns p [C, classes], the clients' label distributions."""
    return np.asarray(population.label_count / population.n[:, None])  # eq. 2


def by_labels(
    num_clusters: int | str,
    balanced: bool,
    epsilon: float,
    key: Array,
    population: Client,
    last: None,
) -> dict[str, np.ndarray]:
    """The `prepare` of stage 2: forms clusters of clients with similar label distributions."""
    rng = clusters.generator(key)
    p = label_shares(population)
    if epsilon:
        p = p + rng.laplace(scale=1 / epsilon, size=p.shape)  # eq. 14; sensitivity 1, eq. 13
    return clusters.form(p, num_clusters, balanced, rng)


def alone(key: Array, population: Client, last: None) -> dict[str, np.ndarray]:
    """The `prepare` of stage 2 in which each client is a cluster."""
    p = label_shares(population)
    return {"p": p, "member": np.eye(len(p), dtype=np.float32)}


def one_start(
    task: Task, key: Array, num_clients: int, last: None, facts: dict[str, Array]
) -> State:
    """The `start` of stage 2: the models of all clusters start from the same weights."""
    centers = tree.repeat(task.init(key), len(facts["member"]))
    return State(Clusters(centers, facts["member"]), ())


def other(task: Task, clustering: str, num_clusters: int) -> Method:
    """Returns the method that replaces steps 1 and 2, with its default settings."""
    if not isinstance(num_clusters, int):
        raise BadInput(
            f"config.method.num_clusters={num_clusters} cannot be combined with"
            f" config.method.clustering={clustering}; choose a number"
        )
    if clustering == "ifca":
        return ifca(task, num_clusters=num_clusters, by_size=True)
    return {"fesem": fesem, "fedsoft": fedsoft}[clustering](task, num_clusters=num_clusters)
