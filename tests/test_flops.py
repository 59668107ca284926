"""The numbers of floating-point operations of rounds, against products counted by hand."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from commands import call

from fedjax_lab import streams
from fedjax_lab.engine import flops
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation import simulate

like = jax.ShapeDtypeStruct
WIDE = make_task(nets.mlp(toys.K, width=256), (toys.D,), toys.K)
BATCH = 8


def lane():
    keys = streams.make_keys(jax.random.key(0))
    return simulate.Lane(toys.FEDERATION, toys.POPULATION, keys)


def cost(method, **fields):
    """The cost of a round of four clients, with the program, lane and state of the round."""
    plan = toys.PLAN._replace(cohort=4, batch_size=BATCH, **fields)
    program = simulate.Program(method, plan, toys.VECTORIZED)
    state = jax.eval_shape(lambda: simulate.init(method, lane().keys, toys.C))
    return flops.round_cost(program, lane(), state), program, lane(), state


def products(task, batch):
    """The operations of the products in a training step, which needs no input gradient."""
    params = jax.eval_shape(task.init, jax.random.key(0)).params
    first, *others = [a.size for a in jax.tree.leaves(params) if a.ndim == 2]
    first, others = max(first, *others), min(first, *others)
    assert first == toys.D * 256 and others == 256 * toys.K
    return 2 * batch * (2 * first + 3 * others)


def test_the_iterations_of_nested_loops_are_counted():
    """Three iterations of two products 4x8 by 8x8, the second in a loop of five iterations."""

    def inner(x, w):
        return x @ w, None

    def outer(x, w):
        return jax.checkpoint(lambda x: jax.lax.scan(inner, x, w)[0])(x @ w[0]), None

    shapes = like((4, 8), jnp.float32), like((3, 5, 8, 8), jnp.float32)
    program = jax.make_jaxpr(lambda x, w: jax.lax.scan(outer, x, w)[0])(*shapes)
    made = 3 * (1 + 5) * 2 * 4 * 8 * 8
    assert made <= flops.count(program) < 1.05 * made  # loop counters are also counted
    either = jax.make_jaxpr(
        lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda: x, lambda: jax.lax.scan(outer, x, w)[0])
    )(*shapes)
    assert made <= flops.count(either) < 1.05 * made  # of the longer branch


@pytest.mark.slow
def test_a_step_of_fedavg_costs_little_more_than_its_matrix_products():
    made = products(WIDE, BATCH)
    of_round, *played = cost(toys.make("fedavg", WIDE), epochs=3)
    assert made <= of_round.step < 1.4 * made  # also activations, the loss and the update
    parameters = 256 * toys.D + 256 + 256 * toys.K + toys.K
    assert 2 * 4 * parameters <= of_round.fixed < 4 * 4 * parameters  # the mean of four clients
    check_linear(played)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["hfedf", "fedrep", "fediir"])
def test_the_cost_of_a_client_is_linear_in_its_number_of_batches(name):
    """Only the cost of shuffling the examples is not linear."""
    check_linear(cost(toys.make(name), epochs=3)[1:])


def check_linear(played):
    one, two, five = (flops.client_cost(*played, batches) for batches in (1, 2, 5))
    assert five.steps == 5 * one.steps > 0
    more = two.operations - one.operations
    np.testing.assert_allclose(five.operations, one.operations + 4 * more, rtol=0.01)


@pytest.mark.exhaustive
def test_rows_sum_the_operations_of_the_clients_that_took_part(tmp_path, capsys):
    """Three of the unequal clients take part in a round; a seed runs with another and alone."""
    config = toys.write_config(tmp_path, run={"rounds": 5, "cohort": 3, "eval_every": 2})
    rows = {}
    for seeds in ("0,1", "0"):
        folder = tmp_path / seeds
        flags = f"--config={config}", f"--workdir={folder}", f"--seeds={seeds}"
        assert call(*flags) == 0
        rows[seeds] = [
            (row["seed"], row["round"], row["flops"])
            for row in metric_rows.read_metrics(folder / "metrics.jsonl")
        ]
    assert [row for row in rows["0,1"] if row[0] == 0] == rows["0"]
    made = [row[2] for row in rows["0"]]
    assert 0 < made[0] < made[1] < made[2]
    assert made[0] != made[1] - made[0]  # other clients took part
    summary = json.loads((tmp_path / "0,1/summary.json").read_text())
    assert summary["flops"] == sum(row[2] for row in rows["0,1"] if row[1] == 5)
    assert summary["flops_per_second"] > 0 and summary["flops_utilization"] is None
    assert summary["round_seconds"]["intervals"] == 2


def test_the_pace_leaves_out_warm_up_intervals():
    """Two seeds run together. A stage's first interval is left out if the stage has others."""
    timed = [
        (5, "a", 9.0, 10.0),
        (10, "a", 10.0, 20.0),
        (15, "a", 12.0, 30.0),
        (16, "b", 15.0, 80.0),
    ]
    rows = [
        {"round": after, "seed": seed, "stage": stage, "seconds": seconds, "flops": flops}
        for after, stage, seconds, flops in timed
        for seed in (0, 1)
    ]
    pace = metric_rows.pace(rows, [0, 1])
    each = np.array([1 / 5, 2 / 5, 3 / 1]) / 2  # seconds per round of one seed
    low, median, high = np.percentile(each, (25, 50, 75))
    expected = {"median": median, "low": low, "high": high, "intervals": 3}
    assert pace["round_seconds"] == pytest.approx(expected)
    assert pace["flops"] == 160.0 and pace["flops_per_second"] == pytest.approx(2 * 70 / 6)
    without = [{k: v for k, v in row.items() if k != "flops"} for row in rows]
    assert metric_rows.pace(without, [0, 1])["flops"] is None
    first = metric_rows.pace(rows[:2], [0, 1])
    assert first["round_seconds"]["median"] == 9 / 5 / 2 and first["flops_per_second"] == 20 / 9
