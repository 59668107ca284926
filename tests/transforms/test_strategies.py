"""Runs with transforms do not depend on the execution strategy."""

from functools import cache

import jax
import numpy as np
import pytest
import toys
import wrapped
from slow_cases import exhaustive_but

from fedjax_lab import parallel
from fedjax_lab.hosted import Host
from fedjax_lab.transforms import aggregators, attacks, compression, downlink

PLAN = toys.PLAN._replace(attackers=0.4, dropout=0.2)


def compressed(method):
    """Messages and uploads are quantized; clients keep residuals."""
    method = downlink.qsgd(method, toys.NORM)
    return compression.qsgd(method, toys.NORM, bits=4, error_feedback=True)


def attacked(method):
    """Some clients attack together, and an aggregator gets their uploads."""
    method = attacks.little_is_enough(attacks.sign_flip(method, toys.NORM), toys.NORM)
    return aggregators.trimmed_mean(method, toys.NORM, trim=0.3)


def all_kinds(method):
    """The transforms of both, in the order of wrapping."""
    method = attacked(downlink.qsgd(method, toys.NORM))
    return compression.qsgd(method, toys.NORM, bits=4, error_feedback=True)


def divided():
    """Clients are divided among four devices, each of which trains two at a time."""
    return parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2), by_client=True)


@cache
def played(wrap, how="one seed at a time"):
    """The final states of two seeds."""
    options = {
        "one seed at a time": lambda: {},
        "seeds at once": lambda: {"vectorized_seeds": True},
        "chunks": lambda: {"strategy": parallel.chunked(2)},
        "several devices": lambda: {"strategy": divided()},
        "on the host": lambda: {"host": Host(on_disk=False, stream=True)},
    }[how]()
    return wrapped.played(wrap(toys.make("scaffold")), PLAN, **options)


@pytest.mark.parametrize(
    ("wrap", "how"),
    exhaustive_but(
        [(all_kinds, "seeds at once"), (all_kinds, "several devices"), (all_kinds, "on the host")],
        [
            (wrap, how)
            for wrap in (all_kinds, attacked, compressed)
            for how in ("seeds at once", "chunks", "several devices", "on the host")
        ],
    ),
)
def test_results_do_not_depend_on_the_execution_strategy(wrap, how):
    """Up to a step of the quantizer, because rounding errors may change a level."""
    limit = 2e-4 if wrap is attacked else 1e-3
    for expected, made in zip(played(wrap), played(wrap, how), strict=True):
        for a, b in zip(*map(jax.tree.leaves, (expected, made)), strict=True):
            np.testing.assert_allclose(a, b, rtol=limit, atol=limit)
