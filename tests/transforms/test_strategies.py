"""Runs with transforms do not depend on the execution strategy."""

from functools import cache

import jax
import numpy as np
import pytest
import toys
import wrapped
from slow_cases import exhaustive_but

from fedjax_lab.engine import parallel
from fedjax_lab.engine.host.hosted import Host
from fedjax_lab.transforms import aggregators, attacks, compression, downlink

PLAN = toys.PLAN._replace(attackers=0.4, dropout=0.2)


def all_kinds(method):
    """Some clients attack together, all are quantized, and they keep residuals."""
    method = attacks.sign_flip(downlink.qsgd(method, toys.NORM), toys.NORM)
    method = attacks.little_is_enough(method, toys.NORM)
    method = aggregators.trimmed_mean(method, toys.NORM, trim=0.3)
    return compression.qsgd(method, toys.NORM, bits=4, error_feedback=True)


def divided():
    """Clients are divided among four devices, each of which trains two at a time."""
    return parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2), by_client=True)


@cache
def played(how="one seed at a time"):
    """The final states of two seeds."""
    options = {
        "one seed at a time": lambda: {},
        "seeds at once": lambda: {"vectorized_seeds": True},
        "several devices": lambda: {"strategy": divided()},
        "on the host": lambda: {"host": Host(on_disk=False, stream=True)},
    }[how]()
    return wrapped.played(all_kinds(toys.make("scaffold")), PLAN, **options)


@pytest.mark.parametrize(
    "how", exhaustive_but(["several devices"], ["seeds at once", "several devices", "on the host"])
)
def test_results_do_not_depend_on_the_execution_strategy(how):
    """Up to a step of the quantizer, because rounding errors may change a level."""
    for expected, made in zip(played(), played(how), strict=True):
        for a, b in zip(*map(jax.tree.leaves, (expected, made)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
