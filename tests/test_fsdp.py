"""Models sharded over groups of devices: what a device stores and computes, and the results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import PartitionSpec as P
from naive import KEYS
from shared_programs import shared_programs  # noqa: F401
from slow_cases import exhaustive_but

from fedjax_lab import tree
from fedjax_lab.engine import fsdp, parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.models import char_lstm, nets, vit
from fedjax_lab.models.task import make_task
from fedjax_lab.running import runner
from fedjax_lab.simulation import simulate

NETS = {
    "mlp": (nets.mlp(toys.K, width=16, norm=True), (6, 6, 1)),
    "cnn": (nets.concat_cnn(toys.K), (28, 28, 1)),
    "vit": (vit.vit(toys.K, width=16, depth=2, heads=2, patch=3, remat=True), (6, 6, 1)),
    "lstm": (char_lstm.CharLSTM(toys.K, width=16), (6,)),
}


@pytest.fixture(autouse=True)
def even_small_arrays_are_divided(monkeypatch):
    monkeypatch.setattr(fsdp, "SMALLEST", 8)


@pytest.mark.parametrize(
    ("shape", "divided"),
    [
        ((20, 512, 2048), P(None, None, "fsdp")),
        ((64, 30), P("fsdp")),
        ((64, 64), P(None, "fsdp")),
        ((16, 30), P("fsdp")),  # 4 does not divide the longest axis
        ((30, 6), P()),
        ((4,), P()),  # small
        ((), P()),
    ],
)
def test_an_array_is_divided_along_its_longest_divisible_axis(shape, divided):
    assert fsdp.spec(shape, 4) == divided


def player(name, strategy):
    """Returns FedAvg with the named net, and a function that plays it on random examples."""
    net, shape = NETS[name]
    method = toys.make("fedavg", task=make_task(net, shape, toys.K))
    x = np.random.default_rng(0).integers(0, toys.K, (600, int(np.prod(shape))))
    federation = toys.FEDERATION._replace(x=jnp.asarray(x, jnp.float32))
    plan = toys.PLAN._replace(example_shape=shape)
    return method, toys.player(method, strategy, plan, federation)


def on_groups(group, inner, **divided):
    return parallel.on_mesh(parallel.make_mesh(8, group), inner, **divided)


@pytest.mark.parametrize(
    ("name", "group"), exhaustive_but(["mlp"], [("mlp", 2), ("vit", 8), ("cnn", 4)])
)
def test_groups_of_devices_give_the_results_of_one_device(name, group):
    method, alone = player(name, toys.VECTORIZED)
    strategy = on_groups(group, parallel.sequential())
    first = simulate.init(method, KEYS, toys.C)
    shardings = fsdp.shardings(strategy.sharding, first.server)
    parted = first._replace(server=jax.device_put(first.server, shardings))
    assert any(not s.is_fully_replicated for s in jax.tree.leaves(shardings))
    _, together = player(name, strategy)
    toys.close(together(KEYS, 0, 2, parted)[0], alone(KEYS, 0, 2)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
def test_the_input_of_a_layer_can_be_replaced_in_a_group():
    """Which a loss in blocks does with the head's."""
    task = make_task(*NETS["mlp"], toys.K)
    weights, x, z = task.init(KEYS.init), jnp.ones((2, 6, 6, 1)), jnp.ones((4, 16))

    def logits(weights):
        return task.apply_at("head", weights, x, z).logits

    with jax.set_mesh(parallel.make_mesh(8, 2)):
        found = jax.jit(fsdp.in_group(logits, 2))(weights)
    toys.close(found, logits(weights))


@pytest.mark.slow
def test_clients_of_a_group_may_run_in_parallel():
    _, alone = player("mlp", toys.VECTORIZED)
    _, together = player("mlp", on_groups(2, parallel.chunked(2)))
    toys.close(together(KEYS, 0, 2)[0], alone(KEYS, 0, 2)[0], rtol=1e-3, atol=1e-4)


def build(folder, method="fedavg", run_seeds=(0,), width=8, **engine):
    """Builds a run with six clients, of which four take part in each round."""
    sections = {
        "partition": {"name": "iid"},
        "model": {"width": width},
        "method": {"name": method},
        "run": {"rounds": 3, "cohort": 4},
        "engine": engine,
    }
    return toys.build(folder, run_seeds, **sections)


def check_as_alone(job):
    """Runs the job and checks that its results are those of one device."""
    alone = toys.changed(job, strategy=parallel.sequential())
    result, expected = (runner.run(e, quiet=True) for e in (job, alone))
    toys.close(result.states, expected.states, rtol=1e-3, atol=1e-4)
    for row, other in zip(result.metrics, expected.metrics, strict=True):
        assert row["accuracy"] == other["accuracy"]


@pytest.mark.exhaustive
def test_runs_with_stages_or_vectorized_seeds_on_groups_equal_those_on_one_device(folder):
    check_as_alone(build(folder, "fedconcat", fsdp=2))
    job = build(folder, run_seeds=(0, 1), fsdp=4, seeds="vectorized")
    assert job.simulation.vectorized_seeds
    check_as_alone(job)


@pytest.mark.exhaustive
def test_a_device_stores_only_its_part_of_the_states(folder):
    """SCAFFOLD keeps a state for each client; four groups of two devices divide these states."""
    job = build(folder, "scaffold", fsdp=2, width=64, state="sharded", data="sharded")
    (state,) = Engine(job.simulation).states
    whole = tree.num_bytes(state.server) / 2 + tree.num_bytes(state.private) / 8
    held = tree.num_bytes([a.addressable_shards[0].data for a in jax.tree.leaves(state)])
    assert held < 1.1 * whole  # the head's bias, of three numbers, is not divided
    check_as_alone(job)
