"""A small federation with unequal clients, and helpers that many tests share."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_lab import losses, tree, wire
from fedjax_lab.engine import parallel, shards
from fedjax_lab.engine.input import Seed, Simulation
from fedjax_lab.engine.placement import Jit, Placement
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.running.storage.checkpoint import numbers
from fedjax_lab.simulation import outline, simulate
from fedjax_lab.simulation.population import make_population
from fedjax_lab.testing import toy
from fedjax_lab.testing.toy import PLAN, C, D, K, N, as_rows, make_federation  # noqa: F401
from fedjax_lab.testing.trial import pooled
from fedjax_lab.types import Batch, Exchange, Stage, State, Turn, Weights


def skewed(federation, seed=1):
    """Each client keeps two or three of its classes, so that some are absent."""
    rng = np.random.default_rng(seed)
    y, train = np.asarray(federation.y), np.asarray(federation.train)
    kept = np.full_like(train, -1)
    for row, old in zip(kept, train, strict=True):
        classes = rng.choice(K, rng.integers(2, 4), replace=False)
        rows = old[(old >= 0) & np.isin(y[old], classes)]
        row[: len(rows)] = rows
    return federation._replace(train=as_rows(kept))


def divided(devices):
    """The federation with its rows divided among devices."""
    (train,) = shards.deal([jax.device_get(FEDERATION.train)], devices)
    return FEDERATION._replace(train=jax.tree.map(jnp.asarray, train))


def with_new(federation):
    """The federation with three new clients, which have 2, 5 and 11 training rows, and 4, 0 and 9
    rows for evaluation."""
    rng = np.random.default_rng(2)

    def rows(first, counts):
        table = np.full((3, 11), -1)
        for row, n in zip(table, counts, strict=True):
            row[:n] = first + rng.choice(200, n, replace=False)
        return as_rows(table)

    return federation._replace(new_train=rows(0, (2, 5, 11)), new_test=rows(400, (4, 0, 9)))


with_validation = toy.with_validation
FEDERATION = toy.toy_federation()
SKEWED = skewed(FEDERATION)
TASK = make_task(nets.mlp(K, width=16), (D,), K)
NORM = toy.toy_task()
POPULATION = make_population(FEDERATION, K)._replace(arrived=jnp.ones(C, bool))
VECTORIZED = parallel.vectorized()


JIT = Jit(Placement(VECTORIZED, C, C, seeds=0, abstract=False), precision=None)
SCORES = {"round": 4, "train_loss": 0.5, "accuracy": {"mean": 81.5, "worst10": 51.5}}
SUMMARY = {  # the summary.json of a finished run
    "method": "fedavg",
    "seeds": [0],
    "rounds": 4,
    "last": {"per_seed": {"0": SCORES}, "mean": SCORES},
    "max_over_rounds": {"per_seed": {"0": SCORES}, "mean": SCORES},
    "seconds": 1.5,
    "compile_seconds": 2.5,
    "device": "2 x cpu",
    "strategy": "chunked(2)",
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
}


def random_split(count=300):
    """0 for each training and 1 for each test example, which are a random fifth."""
    is_test = np.isin(np.arange(count), np.random.default_rng(0).permutation(count)[-count // 5 :])
    return is_test.astype(int)


def write_examples(path, **more):
    """Writes an .npz of 300 examples of three classes, 5 features each, for the source `arrays`."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = (2 * rng.normal(size=(3, 5)))[y] + rng.normal(size=(300, 5))
    np.savez(path, x=x.astype(np.float32), y=y, **more)


def config(folder, **sections):
    """A config with six clients for `folder`'s data.npz, which is written if it is missing."""
    path = folder / "data.npz"
    if not path.exists():
        write_examples(path)
    config = {
        "data": {"name": "arrays", "path": str(path)},
        "partition": {"name": "dirichlet", "num_clients": 6},
        "model": {"name": "mlp", "width": 8},
        "local": {"lr": 0.1, "batch_size": 16},
    }
    return config | {name: {**config.get(name, {}), **own} for name, own in sections.items()}


def write_embeddings(folder):
    """Writes embeddings of size 32 of these examples, and returns their section of a config."""
    rows = np.random.default_rng(1).normal(size=(300, 32))
    np.savez(folder / "embedded.npz", examples=rows, labels=np.eye(3, 32))
    return {"name": "precomputed", "file": str(folder / "embedded.npz")}


def write_config(folder, file="toy.py", **sections):
    """Writes the file of a `config`, whose argument is the method, and returns its path."""
    body = f"return {{**{config(folder, **sections)!r}, 'method': {{'name': method}}}}"
    (folder / file).write_text(f"def get_config(method='fedavg'):\n    {body}\n")
    return str(folder / file)


def config_file(**sections):
    """A fixture for the tests of a module: the path of such a file."""

    @pytest.fixture(scope="module")
    def toy(tmp_path_factory):
        return write_config(tmp_path_factory.mktemp("toy"), **sections)

    return toy


def build(folder, seeds=(0,), **sections):
    """The experiment of a `config`."""
    return experiment.build(resolve(config(folder, **sections)), list(seeds))


def simulation(method, rounds, plan=PLAN, federation=FEDERATION, seeds=(0, 1), **options):
    """A run of one stage on the same examples for each seed."""
    federation = jax.tree.map(np.asarray, federation)
    return Simulation(
        seeds=[Seed(number, federation, federation) for number in seeds],
        num_classes=K,
        stages=(Stage("train", method, rounds),),
        plan=plan,
        **{"strategy": VECTORIZED, **options},
    )


def changed(experiment, **fields):
    """The experiment with other fields of its simulation."""
    return experiment._replace(simulation=experiment.simulation._replace(**fields))


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def random_weights(shapes, seed=0):
    """Random values in every leaf, so that a test notices if a layer is left out."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(a.dtype), shapes.params)
    stats = jax.tree.map(lambda a: rng.uniform(1, 2, a.shape).astype(a.dtype), shapes.stats)
    return Weights(params, stats)


def example(count=9):
    """A batch whose last two rows are padding."""
    x, y = FEDERATION.x[:count], FEDERATION.y[:count]
    return Batch(x, y, (jnp.arange(count) < count - 2).astype(jnp.float32))


@lru_cache(maxsize=8)
def compiled(method, plan, strategy, scheduled=None):
    """`simulate.play`, jitted and cached, so that the same method is traced only once."""
    program = simulate.Program(method, plan, strategy)
    if scheduled is not None:

        def in_round(program, t):
            method, fields = scheduled(t)
            return program._replace(method=method, plan=program.plan._replace(**fields))

        program = program._replace(scheduled=in_round)
    return jax.jit(partial(simulate.play, program))


def player(method, strategy=VECTORIZED, plan=None, federation=FEDERATION, scheduled=None):
    """play(keys, start, count, state=None) -> (state, sums), compiled once."""
    federation, population, plan_of_method = pooled(method, federation)
    run = compiled(method, plan or plan_of_method, strategy, scheduled)

    def play(keys, start, count, state=None):
        if state is None:
            state = simulate.init(method, keys, C, population.traits)
        lane, none = simulate.Lane(federation, population, keys), simulate.no_progress()
        return run(lane, state, none, jnp.int32(start), jnp.int32(count))

    return play


def turn(keys, clients=None, **fields):
    """The turn of clients [M] with these random streams, before anything happens to them."""
    count = len(keys)
    if clients is None:
        clients = tree.take(POPULATION, jnp.zeros(count, jnp.int32))
    nothing = jnp.ones(count, bool), jnp.zeros(count), None, None, jnp.zeros(())
    return Turn(clients, keys, *nothing)._replace(**fields)


def bytes_of(method, plan=None):
    """(up, down) of one client in one round."""
    federation, population, plan_of_method = pooled(method, FEDERATION)
    program = simulate.Program(method, plan or plan_of_method, VECTORIZED)
    program, _, _ = outline.first_round(program, federation, population)
    return program.message_bytes


def make(name, task=NORM, **hyper):
    """A method by name on a toy task; see `toy.toy_method`."""
    return toy.toy_method(name, task, **hyper)


def bare(method):
    """The method with a single exchange, whose uploads are themselves updates.

    Each client uploads the message that it gets, and the server's new state is all uploads.
    """
    exchange = Exchange(
        send=lambda server, id: server,
        local=lambda message, client, work: (message, ()),
        aggregate=lambda server, uploads, cohort: uploads,
        updates=wire.all_itself,
    )
    return method._replace(round=(exchange,))


def with_keys(task):
    """FedAvg whose server and clients each keep a typed key and change it in every round."""
    plain = fedavg(task)
    (exchange,) = plain.round

    def init(key, num_clients):
        return State((task.init(key), key), jax.random.split(key, num_clients))

    def local(message, client, work):
        weights, key = message
        noise = jax.random.normal(key) + jax.random.normal(client.private)
        weights = jax.tree.map(lambda a: a + 1e-3 * noise, weights)
        return work.train(weights, losses.risk(task)), jax.random.fold_in(client.private, 1)

    def aggregate(server, uploads, cohort):
        return exchange.aggregate(server[0], uploads, cohort), jax.random.fold_in(server[1], 1)

    def send(server, id):
        return server

    return plain._replace(init=init, round=(Exchange(send, local, aggregate),))


def same(a, b):
    """Asserts that all leaves are equal bit for bit."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(numbers(x), numbers(y))


def close(a, b, rtol=2e-4, atol=2e-5):
    """Asserts that all leaves are equal up to the rounding of sums in another order."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(numbers(x), numbers(y), rtol=rtol, atol=atol)
