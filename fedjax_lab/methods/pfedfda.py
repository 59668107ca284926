"""pFedFDA (Mclaughlin, Su, NeurIPS 2024, arXiv:2411.00329): feature distribution adaptation.

  send    theta_t, the body; mu [K, D] and Sigma [D, D], the global distribution of the features
  local   theta_i <- SGD on CE(g(theta(x)), y),  g = the classifier of (mu, Sigma, pi_i)
          mu_i, Sigma_i: mean by class and covariance within classes of theta_i(x)
          mu~_i = b_1 mu_i + (1 - b_1) mu;  Sigma~_i = b_2 Sigma_i + (1 - b_2) Sigma
          b in [0, 1]^2 minimizes the cross-entropy of g(mu~, Sigma~, pi_i), cross-validated
  server  theta_{t+1}, mu, Sigma = sum_i n_i/n (theta_i, mu~_i, Sigma~_i)

g is a generative classifier, the linear discriminant z^T S mu_c - mu_c^T S mu_c / 2 + log pi_ic
with S = Sigma^-1, and pi_i are the client's shares of the classes. Before it is scored, a client,
also a new one, makes the last three lines of `local` with the body that it receives. As in the
authors' code (cj-mclaughlin/pFedFDA), Sigma_i contains the identity, `ridge` times; Sigma is shrunk
by EPS; a class with less than three examples has the global mean; there are two folds, from which
classes with one example are left out, and b is 0 if none remains; mu starts uniformly in [0, 1) and
Sigma as the identity. The code collects features during the training, shuffles the folds, and clips
the b of L-BFGS; here features are those of theta_i in evaluation mode, examples of a class go to
the folds in turn, and b = sigmoid(s), with s from Adam. In each direction D (D + K) numbers are
sent beside the body.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, optim, streams, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import Positive, checked, log_uniform
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"ridge": log_uniform(1e-3, 1.0)}
EPS = 1e-4  # share of the shrinkage, and the smallest share of a class
FEWEST = 3  # examples of a class that has a mean of its own
FOLDS = 2
STEPS, LR = 20, 0.3  # of Adam


class Gaussians(NamedTuple):
    """The features of class c are distributed as N(mu_c, Sigma)."""

    mu: Array  # [K, D]
    Sigma: Array  # [D, D]


class Message(NamedTuple):
    """The server's state, a message and an upload."""

    theta: Weights
    features: Gaussians


@checked("method")
def pfedfda(task: Task, *, ridge: Positive[float] = 1.0) -> Method:
    """ridge: what is added to the diagonal of a client's covariance."""
    in_head, K = tree.within((task.head,)), task.num_classes

    def init(key, num_clients):
        w = task.init(key)
        D = w.params["head"]["kernel"].shape[0]
        mu = jax.random.uniform(streams.extra(key), (K, D))
        return State(Message(tree.split(in_head, w)[1], Gaussians(mu, jnp.eye(D))), ())

    def local(message, client, work):
        g = classifier(message.features, shares(client))

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            return losses.cross_entropy(_heads.logits(g, out.features), batch), out

        w = work.train(_heads.whole(task, message.theta), loss, only=lambda name: not in_head(name))
        return adapt(message._replace(theta=tree.split(in_head, w)[1]), client, work), ()

    def adapt(message, client, work):
        w, pi = _heads.whole(task, message.theta), shares(client)
        (z, y), mask = work.outputs(lambda batch: (task.apply(w, batch.x).features, batch.y))
        features = adapted(message.features, Batch(z, y, mask), pi, ridge)
        return message._replace(features=features)

    def predict(message, client, x):
        g = classifier(message.features, shares(client))
        return _heads.logits(g, task.apply(_heads.whole(task, message.theta), x).features)

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, aggregate, updates=updates),),
        predict=predict,
        tune=lambda message, client, work: (adapt(message, client, work), client.private),
    )


def updates(message: Message, id: Array, upload: Message) -> Message:
    """Marks the upload as an update of the message, and running statistics as none."""
    return Message(wire.model_references(message.theta, upload.theta), message.features)


def shares(client: Client) -> Array:
    """Returns pi_i [K]; all are 0 for the global model, whose classes are equally likely."""
    return client.label_count / jnp.maximum(client.n, 1)


def classifier(features: Gaussians, pi: Array) -> PyTree:
    """Returns the head g of a distribution, for shares pi [K] of the classes."""
    mu, Sigma = features
    D = len(Sigma)
    Sigma = (1 - EPS) * Sigma + EPS * jnp.trace(Sigma) / D * jnp.eye(D)
    kernel = jax.scipy.linalg.solve(Sigma, mu.T, assume_a="pos")  # [D, K]
    prior = (pi + EPS) / jnp.sum(pi + EPS)
    return {"kernel": kernel, "bias": jnp.log(prior) - jnp.sum(mu.T * kernel, 0) / 2}


def estimated(batch: Batch, mu: Array, ridge: float) -> Gaussians:
    """Returns mu_i and Sigma_i of features batch.x [N, D]; mu: the global means."""
    member = jax.nn.one_hot(batch.y, len(mu)) * batch.mask[:, None]  # [N, K]
    count, sums = jnp.sum(member, 0), tree.mix(member.T, batch.x)
    means = jnp.where(count[:, None] < FEWEST, mu, sums / jnp.maximum(count, 1)[:, None])
    away = (batch.x - means[batch.y]) * batch.mask[:, None]
    scatter = jnp.matmul(away.T, away, precision="highest")
    freedom = jnp.maximum(jnp.sum(batch.mask) - 1, 1)
    return Gaussians(means, scatter / freedom + ridge * jnp.eye(len(scatter)))


def mixed(b: Array, alone: Gaussians, shared: Gaussians) -> Gaussians:
    """Returns mu~ and Sigma~ for coefficients b [2]; alone: mu_i and Sigma_i."""
    return Gaussians(
        b[0] * alone.mu + (1 - b[0]) * shared.mu, b[1] * alone.Sigma + (1 - b[1]) * shared.Sigma
    )


def adapted(shared: Gaussians, batch: Batch, pi: Array, ridge: float) -> Gaussians:
    """Returns mu~_i and Sigma~_i of a client, whose features are batch.x [N, D]."""
    fold, used = folds(batch, len(shared.mu))
    divisions = [
        (batch._replace(mask=used * (fold != k)), batch._replace(mask=used * (fold == k)))
        for k in range(FOLDS)
    ]
    of_folds = [estimated(train, shared.mu, ridge) for train, _ in divisions]

    def loss(s, step):
        heads = (classifier(mixed(jax.nn.sigmoid(s), alone, shared), pi) for alone in of_folds)
        pairs = zip(heads, divisions, strict=True)
        return sum(losses.cross_entropy(_heads.logits(g, held.x), held) for g, (_, held) in pairs)

    adam, s = optim.adam(LR), jnp.zeros(2)
    s, _ = optim.minimize(adam, loss, (s, adam.init(s)), STEPS)
    b = jnp.where(jnp.any(used > 0), jax.nn.sigmoid(s), 0)
    return mixed(b, estimated(batch, shared.mu, ridge), shared)


def folds(batch: Batch, K: int) -> tuple[Array, Array]:
    """Returns the fold of each example [N], and which examples are used [N]."""
    member = jax.nn.one_hot(batch.y, K) * batch.mask[:, None]
    place = jnp.sum(jnp.cumsum(member, 0) * member, 1) - 1  # among the examples of its class
    return place % FOLDS, batch.mask * (jnp.sum(member, 0)[batch.y] >= FOLDS)
