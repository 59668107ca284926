"""Checks strategies: what runs where, at what cost, and that results do not change."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from slow_cases import in_ci

from fedjax_lab.engine import parallel
from fedjax_lab.simulation.strategies import unless_copy

STEPS = np.array([3, 1, 9, 4, 7, 2, 5])


def lane_steps(strategy):
    order = np.asarray(strategy.deal(jnp.asarray(STEPS)))
    assert sorted(order.tolist()) == list(range(len(STEPS)))
    return int(strategy.lane_steps(jnp.asarray(STEPS)[order]))


def test_lane_steps_of_each_strategy():
    assert lane_steps(parallel.vectorized()) == 7 * 9
    assert lane_steps(parallel.sequential()) == STEPS.sum()
    assert lane_steps(parallel.chunked(3)) == 3 * (9 + 4 + 1)  # 9 7 5, 4 3 2, 1 and two of padding
    mesh = parallel.make_mesh(2)
    assert lane_steps(parallel.on_mesh(mesh, parallel.sequential())) == STEPS.sum()
    # 9 4 2 1 on one device; 7 5 3 on the other, whose fourth place is padding that runs too
    assert lane_steps(parallel.on_mesh(mesh, parallel.vectorized())) == 4 * 9 + 4 * 7


def test_a_mesh_may_have_three_devices(monkeypatch):
    """On a TPU, JAX orders only devices that form a box, so not three of four chips."""

    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(jax, "make_mesh", refuse)
    mesh = parallel.make_mesh(3)
    assert (mesh.axis_names, list(mesh.devices)) == (("client",), jax.devices()[:3])


STRATEGIES = "chunked(3)", "sequential", "mesh(4)", "chunks divided", "divided", "divided groups"


def strategies():
    four, two, groups = (parallel.make_mesh(*of) for of in ((4,), (2,), (8, 2)))
    sequential, divided = parallel.sequential(), {"by_client": True, "by_row": True}
    return {
        "chunked(3)": parallel.chunked(3),
        "sequential": sequential,
        "mesh(4)": parallel.on_mesh(four, sequential),
        "divided": parallel.on_mesh(four, sequential, **divided),
        "chunks divided": parallel.on_mesh(two, parallel.chunked(2), by_row=True),
        "divided groups": parallel.on_mesh(groups, sequential, **divided),
    }


@pytest.mark.parametrize("m", in_ci([5], [1, 4, 5, 8]))
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_give_the_results_of_vmap(name, m):
    inner = strategies()[name]

    def fn(shared, federation, rows, entry):
        x = jnp.where(rows[:, None] < 0, 0, federation.x[rows])
        return {"sum": shared + entry[0], "row": entry[1] * 2, "x": x}

    stacked = jnp.arange(m), jnp.arange(m * 3.0).reshape(m, 3)
    rows = toys.FEDERATION.train[jnp.arange(m)]
    federation = toys.FEDERATION._replace(train=None, test=None)
    expected = jax.vmap(fn, (None, None, 0, 0))(10, federation, rows, stacked)
    args = 10, federation, rows, stacked
    toys.same(jax.jit(inner.each(fn))(*args), expected)
    toys.same(jax.jit(inner.everyone(fn, 2))(*args), expected)


def test_a_client_that_may_be_a_copy_is_traced_once():
    traced = []

    def fn(shared, federation, rows, entry):
        traced.append(entry)
        return shared * entry

    run = jax.jit(unless_copy(fn))
    assert [run(2, (), (), (is_copy, 3)) for is_copy in (False, True)] == [6, 0]
    assert len(traced) == 1


def chosen(name="auto", *, cohort=6400, in_turn=False, equal_steps=True, **more):
    """The name of the strategy for two CPU devices; a client takes 48 KiB."""
    return parallel.choose(
        name,
        cohort=cohort,
        in_turn=in_turn,
        equal_steps=equal_steps,
        client_bytes=lambda: 48 * 2**10,
        devices=jax.devices()[:2],
        **more,
    ).name


@pytest.mark.parametrize(
    "asked, name",
    [
        ({"cohort": 300}, "vectorized"),
        ({}, "chunked(40)"),
        ({"name": "chunked"}, "chunked(40)"),
        ({"chunk": 16}, "chunked(16)"),
        ({"chunk": 1}, "sequential"),
        ({"name": "vectorized"}, "vectorized"),
        ({"in_turn": True}, "sequential"),
        ({"in_turn": True, "chunk": 16}, "chunked(16)"),
        ({"cohort": 32, "equal_steps": False}, "chunked(4)"),
    ],
)
def test_the_chunk_size_is_chosen_from_memory_unless_it_is_set(asked, name):
    assert chosen(**asked) == f"mesh(2) x {name}"


IN_PYTHON = """
import os, warnings, jax
from fedjax_lab.engine import parallel
os.sched_getaffinity = lambda _: range(3)
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    parallel.use_every_core_if_possible()
print(jax.device_count(), *(str(each.message) for each in caught))
"""


@pytest.mark.parametrize(
    ("before", "devices", "warning"),
    [
        ("", "3", ""),
        ("jax.config.update('jax_num_cpu_devices', 2)", "2", ""),
        ("jax.devices()", "1", "jax has started with 1 of 3 cores"),
    ],
)
def test_a_run_in_python_uses_every_core_or_warns(before, devices, warning):
    environment = {name: os.environ[name] for name in os.environ if name != "JAX_NUM_CPU_DEVICES"}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", IN_PYTHON.format(before=before)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    count, _, message = ran.stdout.strip().partition(" ")
    assert count == devices and message.startswith(warning) and bool(message) == bool(warning)
