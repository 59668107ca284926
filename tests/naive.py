"""A two-layer perceptron and its training in plain NumPy, a reference for a round of a method.

Each step uses all data of a client, so that the order of the examples does not matter.
"""

import jax
import numpy as np
import toys
from scipy.special import softmax

from fedjax_lab import optim, streams
from fedjax_lab.simulation import simulate

KEYS = streams.make_keys(jax.random.key(3))
STEPS, LR, MOMENTUM, DECAY = 3, 0.1, 0.9, 0.01
FULL = toys.PLAN._replace(
    batch_size=toys.N, epochs=STEPS, optimizer=optim.sgd(LR, MOMENTUM, DECAY), cohort=3
)


def weights_of(w):
    """A toy MLP's parameters as [A, a, B, b]."""
    p = jax.tree.map(np.asarray, w.params)
    return [p["Dense_0"]["kernel"], p["Dense_0"]["bias"], p["head"]["kernel"], p["head"]["bias"]]


def vector(tree):
    """All numbers of a tree as one vector."""
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])


def add(w, v, scale=1.0):
    """w + scale v."""
    return [a + scale * b for a, b in zip(w, v, strict=True)]


def sub(w, v):
    """w - v."""
    return add(w, v, -1)


def features(w, x):
    """The features, which are the input of the head."""
    return np.maximum(x @ w[0] + w[1], 0)


def logits(w, x):
    """The logits [B, K]."""
    return features(w, x) @ w[2] + w[3]


def probabilities(w, x):
    """The softmax of the logits, [B, K]."""
    return softmax(logits(w, x), 1)


def predict(w, x):
    """The most likely class of each example."""
    return logits(w, x).argmax(1)


def backward(w, x, d):
    """The gradient of a loss whose gradient with respect to the logits is d [B, K]."""
    h = features(w, x)
    dh = d @ w[2].T * (h > 0)
    return [x.T @ dh, dh.sum(0), h.T @ d, d.sum(0)]


def gradient(w, x, y, scale=1.0, shift=0.0, pull=lambda z: 0.0):
    """Loss and gradient of the mean cross-entropy of the logits scale W h + b - shift, by hand.

    pull(z) is the gradient of a further term with respect to the features z.
    """
    A, a, B, b = w
    z = features(w, x)
    logits = scale * (z @ B) + b - shift
    logits = logits - logits.max(1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    d = (p - np.eye(toys.K)[y]) / len(y)
    dz = ((d * scale) @ B.T + pull(z)) * (z > 0)
    return loss, [x.T @ dz, dz.sum(0), z.T @ (d * scale), d.sum(0)]


def clipped_gradient(w, x, y, largest):
    """The gradient clipped by its global norm, and whether it is longer than that."""
    _, g = gradient(w, x, y)
    norm = np.sqrt(sum((a**2).sum() for a in g))
    return [a * min(1.0, largest / norm) for a in g], norm > largest


def descend(w, gradient_at, steps=STEPS, lr=LR, momentum=MOMENTUM, decay=DECAY):
    """Takes steps as PyTorch's SGD does, with momentum and weight decay."""
    w, m = [a.copy() for a in w], None
    for _ in range(steps):
        g = add(gradient_at(w), w, decay)
        m = g if m is None else add(g, m, momentum)
        w = add(w, m, -lr)
    return w


def sgd(w, x, y, extra=lambda w: 0, **how):
    """Takes full-batch steps of SGD; `extra(w)` is added to the gradient."""

    def gradient_at(w):
        _, g = gradient(w, x, y)
        more = extra(w)
        return add(g, more) if more else g

    return descend(w, gradient_at, **how)


def data_of(i, federation=toys.FEDERATION):
    """The training examples of client i."""
    rows = np.asarray(federation.train[i])
    rows = rows[rows >= 0]
    return np.asarray(federation.x)[rows], np.asarray(federation.y)[rows]


def cohort(method, t, size=FULL.cohort):
    """The ids of the clients that take part in round t."""
    state = simulate.init(method, KEYS, toys.C)
    key = jax.random.fold_in(KEYS.cohort, t)
    ids, _ = method.sample(key, state.server, toys.POPULATION, size)
    return [int(i) for i in ids]


def first_weights():
    """The initial weights of every method on the toy MLP."""
    return weights_of(toys.TASK.init(KEYS.init))


def counts(i, federation=toys.SKEWED):
    """The number of training examples of client i in each class."""
    return np.bincount(data_of(i, federation)[1], minlength=toys.K)


def shares(ids, federation=toys.FEDERATION):
    """The shares n_i / n of these clients in their examples."""
    n = np.array([len(data_of(i, federation)[1]) for i in ids], float)
    return n / n.sum()


def mean(weight, models):
    """The sum of the models, each times its weight."""
    return [np.tensordot(np.asarray(weight), np.stack(a), 1) for a in zip(*models, strict=True)]


def mean_by_size(ids, models, federation=toys.FEDERATION):
    """The mean of FedAvg: each model is weighted by the size of its client."""
    return mean(shares(ids, federation), models)


def close(w, expected, rtol=1e-4, atol=1e-5):
    """Asserts that the weights of a method are close to a list of arrays."""
    for a, b in zip(weights_of(w), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
