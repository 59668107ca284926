"""FedConcat's stages 2 and 3: averages inside clusters, then one classifier on frozen encoders.

fedconcat.py and fedconcat_id.py form the clusters.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.models import nets
from fedjax_lab.models.task import encode, make_task, split_head
from fedjax_lab.types import (
    Array,
    Exchange,
    Method,
    Plan,
    PyTree,
    Stage,
    State,
    Task,
    Weights,
    same_plan,
)

CLASSIFIER_STEPS = 3  # batches per round

# Stage 2.


class Clusters(NamedTuple):
    """The server's state in stage 2."""

    centers: PyTree  # leaves [K, ...]
    member: Array  # [K, C], 1 where the client belongs to the cluster


def decayed(optimizer, decay: float):
    """Returns the optimizer with additional coupled weight decay."""
    return optax.chain(optax.add_decayed_weights(decay), optimizer) if decay else optimizer


def inside_clusters(task: Task, decay: float = 0.0) -> Method:
    """FedAvg inside each cluster, all of them in one round."""
    risk = losses.risk(task)

    def cluster_model(server, id):
        return tree.take(server.centers, jnp.argmax(server.member[:, id]))

    def local(w, client, work):
        return work.train(w, risk, optimizer=decayed(work.optimizer, decay)), ()

    def aggregate(server, w, cohort):
        share = server.member[:, cohort.id] * cohort.n  # [K, M]
        return server._replace(centers=clusters.average(share, w, server.centers))

    def predict(w, client, x):
        return task.apply(w, x).logits

    exchange = Exchange(cluster_model, local, aggregate, alike=False)
    return Method(
        init=None, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


# Stage 3.


class Concatenation(NamedTuple):
    """The server's state in stage 3."""

    encoders: Weights  # leaves [K, ...], None at the head
    classifier: Weights  # Phi: kernel [K D, classes], bias [classes]


def concatenation(task: Task, rounds: int, classifier_init: str, feature_cache: str) -> Stage:
    """Returns the stage that trains one classifier on the frozen encoders of the previous stage.

    classifier_init, feature_cache: settings of `fedconcat`.
    """

    def start(key, num_clients, last, facts):
        server = last.server
        centers = getattr(server, "centers", server)  # IFCA's server has nothing else
        encoders, heads = split_head(task, centers)
        kernel, bias = (heads.params["head"][name] for name in ("kernel", "bias"))
        K, D, _ = kernel.shape
        if classifier_init == "random":
            return State(Concatenation(encoders, linear(K * D, task.num_classes).init(key)), ())
        summed = {"kernel": kernel.reshape(K * D, -1), "bias": jnp.sum(bias, 0)}
        return State(Concatenation(encoders, Weights({"head": summed}, {})), ())

    return Stage(
        "classifier",
        on_features(task.num_classes),
        rounds,
        start=start,
        frozen=lambda server: server.encoders,
        view=partial(concatenate, task),
        plan=without_augmentation if feature_cache == "clean" else same_plan,
    )


def without_augmentation(plan: Plan) -> Plan:
    """The plan of a stage whose features are those of the images themselves."""
    return plan._replace(augment=None)


def concatenate(task: Task, encoders: Weights, x: Array) -> Array:
    """Returns h(x) [B, K D] of K stacked encoders, by one vectorized forward pass."""
    h = jax.vmap(lambda theta: encode(task, theta, x))(encoders)  # [K, B, D]
    return jnp.swapaxes(h, 0, 1).reshape(x.shape[0], -1)


def linear(width: int, num_classes: int) -> Task:
    """Returns the task of a linear classifier. Its `apply` takes features of any width."""
    return make_task(nets.mlp(num_classes, depth=0), (width,), num_classes)


def on_features(num_classes: int) -> Method:
    """Returns FedAvg for Phi alone, on features instead of examples."""
    task = linear(1, num_classes)
    risk = losses.risk(task)

    def local(phi, client, work):
        return work.train(phi, risk, epochs=1, steps=CLASSIFIER_STEPS), ()

    def aggregate(server, phi, cohort):
        return server._replace(classifier=tree.mix(cohort.weight, phi))

    def predict(phi, client, h):
        return task.apply(phi, h).logits

    def newcomer(state):
        return state.server.classifier, ()

    exchange = Exchange(lambda server, id: server.classifier, local, aggregate)
    return Method(
        init=None, round=(exchange,), predict=predict, newcomer=newcomer, sample=sampling.equal
    )
