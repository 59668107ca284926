"""CCVR: the unchanged body, the head compared with plain NumPy, and virtual features."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from inputs import complaint
from naive import KEYS

from fedjax_lab import streams, tree
from fedjax_lab.experiment import experiment
from fedjax_lab.methods import ccvr
from fedjax_lab.models.task import split_head
from fedjax_lab.simulation import simulate
from fedjax_lab.types import State

STEPS = 5


@functools.cache
def played(task, federation_skewed=False):
    """The states after three rounds of FedAvg, and after the fourth round, which calibrates."""
    federation = toys.SKEWED if federation_skewed else toys.FEDERATION
    train, calibrate = experiment.lay_out(
        toys.make("ccvr", task, virtual=50, server_lr=0.3, server_steps=STEPS), 4
    )
    assert (train.rounds, calibrate.rounds, calibrate.reliable) == (3, 1, True)
    before, _ = toys.player(train.method, plan=naive.FULL, federation=federation)(KEYS, 0, 3)
    start = calibrate.start(KEYS.init, toys.C, before, {})
    play = toys.player(calibrate.method, plan=naive.FULL, federation=federation)
    return before, play(KEYS, 3, 1, start)[0]


@pytest.mark.slow
def test_calibration_changes_the_head_and_no_bit_of_the_body():
    before, after = played(toys.NORM)
    (body, head), (same_body, new_head) = (split_head(toys.NORM, s.server) for s in (before, after))
    toys.same(same_body, body)
    assert float(tree.sq_norm(optax.tree.sub(new_head.params, head.params))) > 1e-4


def features(w, federation):
    """The features z [n, D] and the labels y [n] of each client."""
    return [
        (naive.features(w, x), y) for x, y in (naive.data_of(i, federation) for i in range(toys.C))
    ]


def moments(z):
    """Mean and covariance of z [n, D]."""
    return z.mean(0), np.cov(z, rowvar=False, ddof=1)


@pytest.mark.slow
def test_ccvr_against_numpy():
    """The server's random numbers are those of the package; all else is computed by hand."""
    before, after = played(toys.TASK, True)
    w = naive.weights_of(before.server)
    z, y = (np.concatenate(a) for a in zip(*features(w, toys.SKEWED), strict=True))
    e = np.asarray(jax.random.normal(streams.server(KEYS.cohort, 3, 0), (toys.K, 50, 16)))
    x, labels = [], np.repeat(np.arange(toys.K), 50)
    for c in range(toys.K):
        mu, Sigma = moments(z[y == c])
        lam, V = np.linalg.eigh(Sigma)
        x.append(mu + e[c] @ (V * np.sqrt(np.maximum(lam, 0))) @ V.T)
    x = np.concatenate(x)
    B, b, m = w[2], w[3], [0, 0]
    for _ in range(STEPS):
        logits = x @ B + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        d = (p / p.sum(1, keepdims=True) - np.eye(toys.K)[labels]) / len(labels)
        m = [0.9 * m[0] + x.T @ d, 0.9 * m[1] + d.sum(0)]
        B, b = B - 0.3 * m[0], b - 0.3 * m[1]
    naive.close(after.server, [*w[:2], B, b])


def test_a_class_without_examples_has_no_virtual_features():
    w, z = toys.TASK.init(KEYS.init), toys.normal(0, toys.K, 10, 16)
    present = jnp.array([True, True, False, True])
    calibrated = jax.jit(lambda z: ccvr.calibrated(w, z, present, 0.1, 3).params["head"])
    toys.same(calibrated(z), calibrated(z.at[2].set(7.0)))


def test_too_many_uploads_at_once_are_rejected_before_the_first_round():
    (train, _) = toys.make("ccvr", toys.TASK)(3)
    message = complaint(lambda: jax.eval_shape(lambda: simulate.init(train.method, KEYS, 10**6)))
    assert "4.3 KiB from each of 1,000,000 clients" in message
    assert "at most 983,280 clients (config.partition)" in message


def test_every_client_uploads_its_moments_once():
    _, calibrate = toys.make("ccvr", toys.TASK)(3)
    ids, _ = calibrate.method.sample(KEYS.cohort, (), toys.POPULATION, 2)
    assert len(ids) == toys.C
    method = calibrate.method._replace(init=lambda key, C: State(toys.TASK.init(key), ()))
    up, _ = toys.bytes_of(method)
    assert up == 4 * toys.K * (1 + 16 + 16 * 16)
