"""Models that a group of devices holds together: what each holds and does, and the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import PartitionSpec as P

from fedjax_lab import fsdp, parallel, simulate, streams
from fedjax_lab.models import char_lstm, nets, vit
from fedjax_lab.models.task import make_task

KEYS = streams.make_keys(jax.random.key(0))
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
        ((16, 30), P("fsdp")),  # 4 does not divide the longest
        ((30, 6), P()),
        ((4,), P()),  # small
        ((), P()),
    ],
)
def test_an_array_is_divided_along_its_longest_divisible_axis(shape, divided):
    assert fsdp.spec(shape, 4) == divided


def player(name, strategy):
    """(method, play) of FedAvg with that net on examples of random numbers."""
    net, shape = NETS[name]
    method = toys.make("fedavg", task=make_task(net, shape, toys.K))
    x = np.random.default_rng(0).integers(0, toys.K, (600, int(np.prod(shape))))
    federation = toys.FEDERATION._replace(x=jnp.asarray(x, jnp.float32))
    plan = toys.PLAN._replace(example_shape=shape)
    return method, toys.player(method, strategy, plan, federation)


def on_groups(group, inner, **divided):
    return parallel.on_mesh(parallel.make_mesh(8, group), inner, **divided)


@pytest.mark.parametrize(
    ("name", "group"), [("mlp", 2), ("vit", 2), ("vit", 4), ("vit", 8), ("cnn", 4), ("lstm", 2)]
)
def test_groups_of_devices_give_what_one_device_gives(name, group):
    method, alone = player(name, toys.VECTORIZED)
    strategy = on_groups(group, parallel.sequential())
    first = simulate.init(method, KEYS, toys.C)
    shardings = fsdp.shardings(strategy.sharding, first.server)
    parted = first._replace(server=jax.device_put(first.server, shardings))
    assert any(not s.is_fully_replicated for s in jax.tree.leaves(shardings))
    _, together = player(name, strategy)
    toys.close(together(KEYS, 0, 2, parted)[0], alone(KEYS, 0, 2)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inner", [parallel.vectorized(), parallel.chunked(2)])
def test_clients_of_a_group_may_run_at_once(inner):
    _, alone = player("vit", toys.VECTORIZED)
    _, together = player("vit", on_groups(2, inner))
    toys.close(together(KEYS, 0, 2)[0], alone(KEYS, 0, 2)[0], rtol=1e-3, atol=1e-4)
