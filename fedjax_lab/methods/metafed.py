"""MetaFed (Chen et al., IEEE TNNLS 2023, arXiv:2206.08516): a model goes from client to client.

  1  alone        one round of all clients
     local        w_i <- SGD on F_i;  keeps_i = validation accuracy of w_i > threshold
  2  accumulate   clients take turns:
     send         w_p, the model of the client before
     local        w_i <- SGD on F_i(w) + lam mean |z(w) - z(w_p)|^2 from w_i      if keeps_i
                  w_i <- SGD on F_i from w_p with the BatchNorm layers of w_i     otherwise
  3  personalize  one round of all clients, at the same time
     send         w_p, the last model of stage 2
     local        as in stage 2 with lam_i instead of lam:  lam_i = 0 if a_p <= a_i and a_p < 1/2,
                  lam_i = lam 10^min(1, 5 (a_p - a_i)) / 10 otherwise

z are the features, the input of the head; a_i and a_p are the validation accuracies of w_i and w_p.
Stages 1 and 3 are the first and the last round of the run. In stage 2 all clients take turns in the
order of their ids; if they are sampled, those of a round in random order. The first one of all
trains w_i alone. The server passes models on, and a client is scored with w_i.

The formulas are those of the authors' code, which has 30 epochs in stage 1 and a threshold of 0.6
by default, but 1.1 in its commands, so that no client keeps its model, as here by default. There
clients also keep models that become better than the threshold in stage 2; here clients that take
turns have no validation examples, so that, as in FL-bench, keeps_i stays as after stage 1. The
commands share the BatchNorm layers in one of two cases.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods._stages import go_on, unchanged
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import Share, checked, choice, log_uniform
from fedjax_lab.types import (
    Array,
    Client,
    Exchange,
    Method,
    Stage,
    Stages,
    State,
    Task,
    Weights,
    Work,
)

RANGES = {"threshold": choice(0.6, 0.8, 1.0), "lam": log_uniform(0.1, 10.0)}


class Server(NamedTuple):
    """The server's state in stages 2 and 3, and the message to a client."""

    w_p: Weights
    trained: Array  # [] bool, whether w_p is the model of a client


class Private(NamedTuple):
    """What a client keeps."""

    w_i: Weights
    keeps: Array  # [] bool


@checked("method")
def metafed(
    task: Task,
    *,
    threshold: Share = 1.0,
    lam: float = 1.0,
    alone_epochs: int = 5,
    share_bn: bool = False,
) -> Stages:
    """threshold: clients keep their models with accuracies above this share; with 1 none does.

    lam: weight of the distance between features; 0: a client that keeps its model trains alone.
    alone_epochs: passes of a client in stage 1.
    share_bn: whether BatchNorm layers are passed on as well.
    """
    losses.check_classes(task)
    risk, is_private = losses.risk(task), tree.within(() if share_bn else task.batch_norms)

    def init(key, num_clients):
        w = tree.repeat(task.init(key), num_clients)
        return State((), Private(w, jnp.zeros(num_clients, bool)))

    def alone(nothing, client, work):
        w = work.train(client.private.w_i, risk, epochs=alone_epochs)
        return (), Private(w, accuracy(task, w, work) > threshold)

    def accumulate(server, client, work):
        w = taught(task, is_private, lam, server, client.private, work)
        return w, client.private._replace(w_i=w)

    def personalize(server, client, work):
        a_i, a_p = (accuracy(task, w, work) for w in (client.private.w_i, server.w_p))
        w = taught(task, is_private, lam * trust(a_i, a_p), server, client.private, work)
        return (), client.private._replace(w_i=w)

    of_all = with_own_models(task)
    turns = Exchange(send, accumulate, pass_on, updates=updates, alike=False)
    in_turn = of_all._replace(init=None, round=(turns,), sample=sampling.by_size, validation=False)
    each = (
        of_all._replace(init=init, round=(Exchange(send, alone, unchanged),)),
        in_turn.having(one_by_one=True),
        of_all._replace(init=None, round=(Exchange(send, personalize, unchanged),)),
    )
    return partial(stages, task, each)


def with_own_models(task: Task) -> Method:
    """Returns FedAvg of all clients, which have validation examples and are scored with w_i."""
    return fedavg(task)._replace(
        predict=lambda nothing, client, x: task.apply(client.private.w_i, x).logits,
        newcomer=None,
        scored=lambda server, id: (),
        sample=sampling.all_clients,
        validation=True,
    )


def stages(task: Task, each: tuple[Method, ...], rounds: int) -> tuple[Stage, ...]:
    """Returns the stages of a run; each: their methods."""

    def start(key, num_clients, last, facts):
        return State(Server(task.init(key), jnp.array(False)), last.private)

    alone, accumulate, personalize = each
    return (
        Stage("alone", alone, 1),
        Stage("accumulate", accumulate, rounds - 2, start=start),
        Stage("personalize", personalize, 1, start=go_on),
    )


def pass_on(server: Server, w: Weights, cohort: Client) -> Server:
    """Takes the model of the only client in the cohort."""
    return Server(tree.take(w, 0), jnp.array(True))


def updates(server, id, w):
    """Marks the model itself as an update, because it need not be trained from w_p."""
    return wire.update_references(w)


def taught(
    task: Task,
    is_private: Callable[[str], bool],
    lam: float | Array,
    server: Server,
    private: Private,
    work: Work,
) -> Weights:
    """Returns w_i after the local work of stages 2 and 3.

    is_private: the name of a leaf -> whether it is never passed on.
    """
    (w_p, trained), (w_i, keeps) = server, private
    passed = tree.join(tree.split(is_private, w_i)[0], tree.split(is_private, w_p)[1])

    def references(batch):
        return losses.pooled(task.apply(w_p, batch.x).features)

    def loss(w, batch, key):
        out = task.apply(w, batch.x, key, batch.mask)
        apart = jnp.mean((losses.pooled(out.features) - batch.references) ** 2, -1)
        distance = losses.masked_mean(apart, batch.mask)
        return task.loss(out.logits, batch) + lam * (keeps & trained) * distance, out

    return work.train(tree.where(keeps | ~trained, w_i, passed), loss, references=references)


def accuracy(task: Task, w: Weights, work: Work) -> Array:
    """Returns the share of the client's validation examples that w predicts."""

    def right(batch):
        hits = jnp.argmax(task.apply(w, batch.x).logits, -1) == batch.y
        return losses.masked_mean(hits, batch.mask)

    return work.mean(right, rows="validation")


def trust(a_i: Array, a_p: Array) -> Array:
    """Returns lam_i / lam."""
    better = 10 ** jnp.minimum(1, 5 * (a_p - a_i)) / 10
    return jnp.where((a_p <= a_i) & (a_p < 0.5), 0, better)
