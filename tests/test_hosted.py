"""Runs with private state and examples on the host equal runs with both on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import blocks, parallel, sampling, tree
from fedjax_lab.config import resolve
from fedjax_lab.engine import Engine, Simulation
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import build
from fedjax_lab.hosted import Host
from fedjax_lab.metrics import BUILT_IN
from fedjax_lab.types import Stage, State

FEDERATION = jax.tree.map(
    np.asarray, toys.with_new(toys.FEDERATION._replace(domain=toys.FEDERATION.y // 2))
)
HOSTS = {"memory": Host(), "disk": Host(on_disk=True), "stream": Host(stream=True)}


def simulation(method, host, seeds=(0, 1), strategy=toys.VECTORIZED, cohort=5, metrics=()):
    return Simulation(
        seeds=list(seeds),
        federations=[FEDERATION] * len(seeds),
        training=[FEDERATION] * len(seeds),
        num_classes=toys.K,
        stages=(Stage("train", method, 6),),
        plan=toys.PLAN._replace(num_domains=2, eval_batch=50, cohort=cohort, metrics=metrics),
        strategy=strategy,
        host=host,
    )


def run(*args, folder=None, **options):
    """Plays a run that is also evaluated halfway; returns its states, results and bytes."""
    return play(Engine(simulation(*args, **options), folder=folder))


def play(engine):
    engine.compile()
    out = []
    for goal in (3, 6):
        while engine.played < goal:
            engine.play(goal - engine.played)
        out += [engine.progress(), engine.evaluate(), engine.recorded()]
    return engine.final_states(), out, engine.bytes


@pytest.fixture
def small_blocks(monkeypatch):
    """Limits blocks of the toy population to two rounds."""
    monkeypatch.setattr(blocks, "MOST_ROUNDS", 2)


@pytest.mark.slow
@pytest.mark.parametrize("kept", HOSTS)
@pytest.mark.parametrize("name", ["scaffold", "fedper"])
def test_runs_on_the_host_equal_runs_on_the_devices(name, kept, small_blocks, tmp_path):
    method = toys.make(name)
    toys.same(run(method, HOSTS[kept], folder=tmp_path), run(method, None))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["finetune", "moon", "ifca"])
def test_every_kind_of_method_gives_the_same_numbers_on_the_host(name, small_blocks):
    """They tune before scoring, have several private leaves, or use all clients in each round."""
    method = toys.make(name)
    host = Host(stream=True)
    toys.same(run(method, host, seeds=[0]), run(method, None, seeds=[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"), [("fedfomo", {}), ("knn_per", {"weight": "validation"})]
)
@pytest.mark.parametrize("kept", ["memory", "stream"])
def test_methods_with_validation_rows_run_the_same_on_the_host(name, settings, kept, small_blocks):
    """They use the rows in `local` and in `tune`. New clients have none and are left out."""
    held_out = toys.with_validation(toys.FEDERATION._replace(domain=toys.FEDERATION.y // 2))
    federations = [jax.tree.map(np.asarray, held_out)]

    def played(host):
        given = simulation(toys.make(name, **settings), host, seeds=[0])
        return play(Engine(given._replace(federations=federations, training=federations)))

    toys.same(played(HOSTS[kept]), played(None))


@pytest.mark.slow
def test_private_state_on_the_host_may_have_typed_keys(small_blocks, tmp_path):
    method = toys.with_keys(toys.TASK)
    method = method._replace(
        predict=lambda message, client, x: toys.TASK.apply(message[0], x).logits
    )
    toys.same(run(method, Host(on_disk=True), folder=tmp_path), run(method, None))


@pytest.mark.slow
@pytest.mark.parametrize("inner", [parallel.vectorized(), parallel.sequential()])
@pytest.mark.parametrize("stream", [False, True])
def test_runs_on_the_host_give_the_same_numbers_on_a_mesh(inner, stream, small_blocks):
    """Three devices divide eight clients and a cohort of five."""
    method, mesh = toys.make("scaffold"), parallel.make_mesh(3)
    whole, divided = (
        parallel.on_mesh(mesh, inner, by_client, by_client and stream)
        for by_client in (False, True)
    )
    alone = run(method, Host(stream=stream), seeds=[0], strategy=divided)
    toys.same(alone, run(method, None, seeds=[0], strategy=whole))


@pytest.mark.slow
def test_a_block_is_one_round_if_cohorts_depend_on_the_server(small_blocks):
    method = toys.make("moon")

    def sample(key, server, population, m):
        bits = jax.lax.bitcast_convert_type(jax.tree.leaves(server.params)[0], jnp.uint32)
        return sampling.by_size(jax.random.fold_in(key, jnp.sum(bits)), server, population, m)

    method = method._replace(sample=sample)
    few = {"seeds": [0], "cohort": 2}
    toys.same(run(method, Host(stream=True), **few), run(method, None, **few))


@pytest.mark.parametrize("part", ["newcomer", "record"])
def test_a_method_that_reads_the_state_of_all_clients_is_rejected(part):
    """A method that uses only the shapes of the state is accepted."""
    method = toys.make("scaffold")

    def reads(state):
        return {"mean": jax.tree.map(lambda a: a.mean(0), state.private)}

    def looks(state):
        return {"zero": tree.zeros(jax.tree.map(lambda a: a[0], state.private))}

    Engine(simulation(method._replace(record=looks), Host()))
    with pytest.raises(BadInput, match=f"`{part}` reads the private state of all clients"):
        Engine(simulation(method._replace(**{part: reads}), Host()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method.name": "central"}, "config.engine.state=host needs clients"),
        ({"method.name": "fedconcat"}, "config.engine.state=host needs a method without stages"),
        (
            {"engine.data": "stream", "engine.state": "replicated"},
            "state=replicated cannot be combined with streamed examples",
        ),
        ({"engine.seeds": "vectorized"}, "config.engine.state=host trains one seed after another"),
    ],
)
def test_configs_without_support_for_state_on_the_host_are_rejected(options, message, tmp_path):
    toys.write_examples(tmp_path / "data.npz")
    data = {"data": {"name": "arrays", "path": str(tmp_path / "data.npz")}}
    config = resolve(data, [("engine.state", "host"), *options.items()])
    with pytest.raises(BadInput, match=message):
        build(config, [0, 1])


@pytest.mark.slow
def test_the_engine_holds_no_private_state_of_all_clients(small_blocks):
    """Nothing of the population's size is in the states that go through the rounds."""
    engine = Engine(simulation(toys.make("scaffold"), Host(), seeds=[0]))
    engine.compile()
    engine.play(1)
    assert isinstance(engine.states[0], State)
    assert not jax.tree.leaves(engine.states[0].private)


def test_a_metric_of_all_outputs_is_rejected_if_they_come_in_pieces(monkeypatch):
    """The global test set has 200 rows. A metric that is a mean over them is accepted."""
    monkeypatch.setattr(blocks, "EXAMPLE_BYTES", 60 * 32)
    metrics = tuple(BUILT_IN[name] for name in ("ece", "auroc"))
    options = {"method": toys.make("fedavg"), "seeds": [0], "host": Host(stream=True)}
    with pytest.raises(BadInput, match="^metric 'auroc' needs a model's outputs for all test"):
        Engine(simulation(**options, metrics=metrics))
    Engine(simulation(**options, metrics=metrics[:1]))
