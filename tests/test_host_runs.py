"""Runs with private state and examples on the host equal runs with both on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from slow_cases import exhaustive_but

from fedjax_lab import sampling, tree
from fedjax_lab.engine import parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.host import playing
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.engine.input import Host
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import build
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.metrics import BUILT_IN

DOMAINS = toys.FEDERATION._replace(domain=toys.FEDERATION.y // 2)
FEDERATION = toys.with_new(DOMAINS)
HELD_OUT = toys.with_validation(DOMAINS)  # for all but new clients, which are left out
HOSTS = {"memory": Host(), "disk": Host(on_disk=True), "stream": Host(stream=True)}


def simulation(method, host, cohort=5, metrics=(), **options):
    federation = HELD_OUT if method.validation else FEDERATION
    plan = toys.PLAN._replace(num_domains=2, eval_batch=50, cohort=cohort, metrics=metrics)
    return toys.simulation(method, 6, plan, federation, host=host, **options)


def run(*args, folder=None, **options):
    """Plays a run that is also evaluated halfway; returns its states, results and bytes."""
    engine = Engine(simulation(*args, **options), folder=folder)
    engine.compile()
    out = []
    for goal in (3, 6):
        while engine.played < goal:
            engine.play(goal - engine.played)
        if engine.simulation.host:  # nothing of the population's size goes through the rounds
            assert not any(jax.tree.leaves(state.private) for state in engine.states)
        out += [engine.progress(), engine.evaluate(), engine.recorded()]
    return engine.final_states(), out, engine.bytes


def server_dependent(method):
    """The method, whose cohorts depend on the server's state, so that a block is one round."""

    def sample(key, server, population, m):
        bits = jax.lax.bitcast_convert_type(jax.tree.leaves(server.params)[0], jnp.uint32)
        return sampling.by_size(jax.random.fold_in(key, jnp.sum(bits)), server, population, m)

    return method._replace(sample=sample)


def with_keys():
    """A method whose private state has typed keys."""
    method = toys.with_keys(toys.TASK)
    return method._replace(predict=lambda message, client, x: toys.TASK.apply(message[0], x).logits)


@pytest.fixture
def small_blocks(monkeypatch):
    """Limits blocks of the toy population to two rounds."""
    monkeypatch.setattr(playing, "MOST_ROUNDS", 2)


ONE = {"seeds": (0,)}
CASES = {  # {name: (method, where the state is kept, options)}
    "memory": (lambda: toys.make("scaffold"), "memory", {}),
    "disk": (with_keys, "disk", {}),
    "stream": (lambda: toys.make("fedper"), "stream", {}),
    "tunes": (lambda: toys.make("finetune"), "stream", ONE),
    "many leaves": (lambda: toys.make("moon"), "stream", ONE),
    "all clients": (lambda: toys.make("ifca"), "stream", ONE),
    "validation": (lambda: toys.make("fedfomo"), "memory", ONE),
    "tunes by validation": (lambda: toys.make("knn_per", weight="validation"), "stream", ONE),
    "one round": (lambda: server_dependent(toys.make("moon")), "stream", {**ONE, "cohort": 2}),
}


@pytest.mark.parametrize("case", exhaustive_but(["disk"], CASES))
def test_runs_on_the_host_equal_runs_on_the_devices(case, small_blocks, tmp_path):
    """Cohorts of five of eight clients share clients with the next block."""
    make, kept, options = CASES[case]
    method = make()
    expected = run(method, None, **options)
    toys.same(run(method, HOSTS[kept], folder=tmp_path, **options), expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stream", [False, True])
def test_runs_on_the_host_give_the_same_numbers_on_a_mesh(stream, small_blocks):
    """Three devices divide eight clients and a cohort of five."""
    inner = parallel.vectorized() if stream else parallel.sequential()
    method, mesh = toys.make("scaffold"), parallel.make_mesh(3)
    whole, divided = (
        parallel.on_mesh(mesh, inner, by_client, by_client and stream)
        for by_client in (False, True)
    )
    alone = run(method, Host(stream=stream), seeds=[0], strategy=divided)
    toys.same(alone, run(method, None, seeds=[0], strategy=whole))


def test_a_block_has_as_many_rounds_as_memory_allows(monkeypatch):
    """Private states and examples of the largest clients limit it; it has at least one round."""
    monkeypatch.setattr(playing, "STATE_BYTES", 100)
    monkeypatch.setattr(playing, "EXAMPLE_BYTES", 60)
    counts = [np.array([1, 5, 2]), np.array([0, 3, 4])]  # sorted and added: 9, 5 and 1
    assert playing.clients_that_fit(10, 0, []) == 10
    assert playing.clients_that_fit(10, 4, counts) == 3
    assert playing.clients_that_fit(10, 5, counts) == 1
    assert playing.clients_that_fit(1000, 5, counts) == 1
    program = simulate.Program(toys.make("fedavg"), toys.PLAN, toys.VECTORIZED)
    assert playing.block_size(program, Owners((0, 1000)), 5, 12) == (2, 10)
    assert playing.block_size(program, Owners((0, toys.C)), 5, 12) == (2, 8)
    assert playing.block_size(program, Owners((0, 1000)), 5, 3) == (1, 5)
    assert playing.block_size(program, Owners((0, 1000)), 5, 10**6) == (toys.PLAN.rounds, 30)


@pytest.mark.parametrize("part", ["newcomer", "record"])
def test_a_method_that_reads_the_state_of_all_clients_is_rejected(part):
    """A method that uses only the shapes of the state is accepted."""
    method = toys.make("scaffold")

    def reads(state):
        return {"mean": jax.tree.map(lambda a: a.mean(0), state.private)}

    def looks(state):
        return {"zero": tree.zeros(jax.tree.map(lambda a: a[0], state.private))}

    Engine(simulation(method._replace(record=looks), Host()))
    error = complaint(Engine, simulation(method._replace(**{part: reads}), Host()))
    assert f"`{part}` reads the private state of all clients" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method.name": "central"}, "config.engine.state=host does not fit this method"),
        ({"method.name": "fedconcat"}, "state=host does not fit this method: it has stages"),
        (
            {"engine.data": "stream", "engine.state": "replicated"},
            "state=replicated cannot be combined with streamed examples",
        ),
        ({"engine.seeds": "vectorized"}, "config.engine.state=host trains one seed after another"),
    ],
)
def test_configs_without_support_for_state_on_the_host_are_rejected(options, message, tmp_path):
    config = resolve(toys.config(tmp_path), [("engine.state", "host"), *options.items()])
    assert message in complaint(build, config, [0, 1])


def test_a_metric_of_all_outputs_is_rejected_if_they_come_in_pieces(monkeypatch):
    """The global test set has 200 rows. A metric that is a mean over them is accepted."""
    monkeypatch.setattr(playing, "EXAMPLE_BYTES", 60 * 32)
    metrics = tuple(BUILT_IN[name] for name in ("ece", "auroc"))
    options = {"method": toys.make("fedavg"), "seeds": [0], "host": Host(stream=True)}
    error = complaint(Engine, simulation(**options, metrics=metrics))
    assert error.startswith("metric 'auroc' needs a model's outputs for all test")
    Engine(simulation(**options, metrics=metrics[:1]))
