"""Checks that dividing arrays among devices changes only placement and communication."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab import optim, sampling, streams
from fedjax_lab.engine import parallel, shards
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.placement import Placement
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.scaffold import scaffold
from fedjax_lab.simulation import simulate
from fedjax_lab.types import Plan

MESH = parallel.make_mesh(4)
KEYS = streams.make_keys(jax.random.key(3))
PLAN = Plan(rounds=3, cohort=4, batch_size=4, epochs=1, optimizer=optim.sgd(0.05))


def on_shares(fn, **specs):
    return jax.jit(jax.shard_map(fn, mesh=MESH, check_vma=False, **specs))


ODD = {  # values that a sum with zeros could change, in every type that a state may have
    "floats": np.array([[-0.0, np.inf, np.nan], [1e-45, -1.5, 3]] * 4, np.float32),
    "halves": jnp.arange(8, dtype=jnp.bfloat16) - 3,
    "flags": np.arange(8) % 3 == 0,
    "numbers": np.arange(8, dtype=np.int32) - 4,
    "bytes": np.arange(8, dtype=np.uint8) + 200,
}


def bits(a):
    return jax.tree.map(lambda x: np.asarray(x).tobytes(), a)


def test_take_and_put_preserve_every_bit():
    ids = np.array([7, 0, 3, 3, 5, 1, 6, 2])
    take = on_shares(shards.take, in_specs=(P("client"), P()), out_specs=P("client"))
    keys = jax.random.split(jax.random.key(0), 8)
    taken, taken_keys = take((ODD, keys), ids)
    assert bits(taken) == bits(jax.tree.map(lambda a: a[ids], ODD))
    toys.same(taken_keys, keys[ids])
    put = on_shares(shards.put, in_specs=(P("client"), P(), P("client")), out_specs=P("client"))
    padded = np.array([7, 0, 3, -1, 5, 1, 6, -1])  # entries with id -1 are left out
    new = jax.tree.map(lambda a: a[::-1], ODD)
    expected = jax.tree.map(lambda a: np.array(a), ODD)
    for name, a in new.items():
        expected[name][padded[padded >= 0]] = np.asarray(a)[padded >= 0]
    assert bits(put(ODD, padded, new)) == bits(expected)


@pytest.mark.parametrize("name", ["by_size", "equal"])
def test_every_stratum_contributes_equally_many_clients(name):
    """Shares follow the definition; every client of a stratum is drawn equally often."""
    n = np.random.default_rng(0).integers(1, 50, 24).astype(np.float32)
    zeros = dict.fromkeys(("id", "weight", "label_count", "num_clients", "mean_n"), jnp.zeros(24))
    population = toys.POPULATION._replace(**zeros, n=n)

    def draw(key):
        return sampling.in_strata(getattr(sampling, name), key, None, population, 8, strata=4)

    keys = jax.random.split(jax.random.key(0), 3000)
    ids, share = jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))
    np.testing.assert_array_equal(ids // 6, np.tile(np.repeat(np.arange(4), 2), (3000, 1)))
    assert (ids[:, ::2] != ids[:, 1::2]).all()
    times = np.bincount(ids.ravel(), minlength=24)  # binomial(3000, 1 / 3)
    assert (abs(times - 1000) < 5 * np.sqrt(3000 * 2 / 9)).all()
    weight = n if name == "by_size" else np.ones(24)
    of_pair = weight[ids].reshape(-1, 4, 2)
    within = of_pair / of_pair.sum(2, keepdims=True)
    whole = weight.reshape(4, 6).sum(1) / weight.sum()
    np.testing.assert_allclose(share, (whole[:, None] * within).reshape(-1, 8), rtol=1e-5)


def disjoint(clients=8, each=12):
    """A federation whose clients share no example, in an order that mixes devices."""
    rng = np.random.default_rng(1)
    rows = rng.permutation(400)[: clients * each].reshape(clients, each)
    return jax.device_get(toys.FEDERATION._replace(train=toys.as_rows(rows), test=None))


BY_DEVICE = parallel.on_mesh(
    MESH, parallel.vectorized(), by_client=True, by_row=True, by_device=True
)


def simulation(method, federation, strategy, rounds=3, **plan):
    plan = PLAN._replace(rounds=rounds, **plan)
    return toys.simulation(method, rounds, plan, federation, seeds=[0], strategy=strategy)


def placed(federation, strategy):
    """The federation and population as the engine puts them on the devices of a strategy."""
    federation = strategy.arrange(federation)
    place = Placement(strategy, len(federation.train), seeds=0, abstract=False)
    pool = {name: place.put_pool(getattr(federation, name)) for name in shards.POOL}
    population = place.put_clients([simulate.population_on_host(federation, toys.K)])
    replicated = place.put(federation._replace(train=None, **dict.fromkeys(shards.POOL)))
    return replicated._replace(train=place.put_rows([federation.train]), **pool), population


@pytest.mark.slow
def test_sampling_by_device_equals_sampling_by_strata_on_one_device():
    def sample(*args):
        return sampling.in_strata(sampling.by_size, *args, strata=4)

    method, federation = scaffold(toys.TASK), disjoint()
    of_devices = play(method, BY_DEVICE, federation)
    of_one = play(method._replace(sample=sample), parallel.vectorized(), federation)
    toys.close(of_devices, of_one, rtol=1e-5, atol=1e-6)
    rows = np.asarray(federation.train)
    rows[7] = rows[0]
    shared = federation._replace(train=jax.device_get(toys.as_rows(rows)))
    assert "some examples belong to several clients" in complaint(shards.arrange, shared, 4)


@pytest.mark.exhaustive
def test_sampling_by_device_scores_new_clients_as_one_device_does():
    """A new client's examples are on the device that tunes the model on them and scores it."""
    new = np.setdiff1d(np.arange(400), disjoint().train.list)[:60].reshape(4, 15)
    rows = {"new_train": toys.as_rows(new[:, :6]), "new_test": toys.as_rows(new[:, 6:])}
    federation = jax.device_get(disjoint()._replace(**rows))

    def scores(strategy):
        engine = Engine(simulation(toys.make("finetune", toys.TASK), federation, strategy))
        engine.compile()
        return engine.evaluate()[0]

    ours, theirs = scores(BY_DEVICE), scores(parallel.vectorized())
    for a, b in zip((ours.new, ours.new_tuned), (theirs.new, theirs.new_tuned), strict=True):
        toys.same(a[:2], b[:2])
        toys.close(a.measured, b.measured, rtol=1e-5)
    assert (ours.new.correct != ours.new_tuned.correct).any()


def play(method, strategy, federation):
    federation, population = placed(federation, strategy)
    program = simulate.Program(method, PLAN, strategy)
    lane = simulate.Lane(federation, population, KEYS)
    state = simulate.init(method, KEYS, 8)
    run = jax.jit(partial(simulate.play, program))
    return run(lane, state, simulate.no_progress(), 0, 3)[0]


def test_a_round_of_fedavg_by_device_sends_the_model_once():
    federation, population = placed(disjoint(), BY_DEVICE)
    method = fedavg(toys.TASK)
    program = simulate.Program(method, PLAN._replace(equal_steps=True), BY_DEVICE)
    state = simulate.init(method, KEYS, 8)
    run = jax.jit(partial(simulate.play, program), out_shardings=NamedSharding(MESH, P()))
    lane = simulate.Lane(federation, population, KEYS)
    text = run.lower(lane, state, simulate.no_progress(), 0, 3).compile().as_text()
    assert "reduce-scatter" not in text and "all-to-all" not in text
    sent = communicated(text)
    model = sum(a.size for a in jax.tree.leaves(state.server))
    assert model <= sent <= model + 64


def communicated(text):
    """The number of values that the collectives of a compiled program return."""
    results = re.findall(r"= (.+?) (?:all-reduce|all-gather|collective-permute)(?:-start)?\(", text)
    shapes = re.findall(r"\w+\[([\d,]*)\]", " ".join(results))
    return sum(np.prod([int(n) for n in shape.split(",") if n], dtype=int) for shape in shapes)
