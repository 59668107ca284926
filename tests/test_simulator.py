"""The functions of `simulator`: equal to the rounds of the engine, transformed by JAX, checked."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import fedjax_lab
from fedjax_lab import optim, simulator, tree
from fedjax_lab.data.partitions.partitioning import dirichlet
from fedjax_lab.data.sources.digit_domains import digit_domains
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.federation import make_federations
from fedjax_lab.methods.fedasync import fedasync
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedconcat import fedconcat
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.testing.toy import PLAN, C, K, as_rows, toy_federation, toy_task
from fedjax_lab.testing.trial import SEEDS, Trial

SIZES = {"cohort": 5, "batch_size": 8, "epochs": 2, "optimizer": PLAN.optimizer}
TASK = toy_task()
SIM = simulator(fedavg(TASK), TASK, toy_federation(), **SIZES)


def keys():
    """The keys of the two seeds of a trial."""
    return jnp.stack([jax.random.key(seed) for seed in SEEDS])


@pytest.mark.smoke
def test_rounds_of_vmapped_seeds_are_those_of_the_engine():
    trial = Trial(fedavg(TASK))
    expected, sums = trial.play(0, 3, trial.start())

    def run(key, data):
        def one(state, t):
            return SIM.round(key, state, t, data)

        return jax.lax.scan(one, SIM.init(key), jnp.arange(3))

    state, info = jax.jit(jax.vmap(run, (0, None)))(keys(), SIM.data)
    toys.close(state, expected)
    np.testing.assert_allclose(info.train_loss.sum(1), sums.train_loss, rtol=1e-5)
    np.testing.assert_array_equal(info.examples.sum(1), sums.examples)

    last = jax.tree.map(lambda a: a[-1], state)
    scores = SIM.summarize(jax.jit(SIM.score)(keys()[-1], last, 3, SIM.data))
    summary = trial.scores(expected, 3)
    assert scores["accuracy"]["per_client"] == summary["accuracy"]["per_client"]


def test_the_server_of_fedavg_is_the_mean_of_the_uploads():
    federation, key = toy_federation(), jax.random.key(3)
    sim = simulator(fedavg(TASK), TASK, federation, **{**SIZES, "cohort": 0})
    state = sim.init(key)
    uploads = jax.jit(jax.vmap(sim.upload, (None, None, None, 0)))(key, state, 4, jnp.arange(C))
    after, _ = jax.jit(sim.round)(key, state, 4)
    toys.close(after.server, tree.mix(sim.data.population.weight, uploads))


@pytest.mark.slow
def test_an_upload_has_a_gradient_in_the_examples():
    table = np.arange(32).reshape(4, 8)  # clients of one size: loops of constant length
    federation = toy_federation()._replace(train=as_rows(table))
    sim = simulator(fedavg(TASK), TASK, federation, batch_size=4, optimizer=optim.sgd(0.1))
    key = jax.random.key(0)
    state = sim.init(key)

    def sent(x):
        data = sim.data._replace(federation=sim.data.federation._replace(x=x))
        return sum(jnp.sum(a) for a in jax.tree.leaves(sim.upload(key, state, 0, 1, data).params))

    gradient = jax.jit(jax.grad(sent))(sim.data.federation.x)
    rows = np.abs(gradient).sum(1)
    assert (rows[8:16] > 0).all()
    assert rows[:8].sum() == rows[16:].sum() == 0


@pytest.mark.slow
def test_settings_can_be_vmapped():
    key = jax.random.key(0)

    def loss(mu):
        sim = simulator(fedprox(TASK, mu=mu), TASK, toy_federation(), **SIZES)
        return sim.round(key, sim.init(key), 0)[0]

    both = jax.jit(jax.vmap(loss))(jnp.array([0.0, 1.0]))
    plain, _ = jax.jit(SIM.round)(key, SIM.init(key), 0)
    toys.close(jax.tree.map(lambda a: a[0], both), plain)
    differ = jax.tree.map(lambda a: float(jnp.abs(a[0] - a[1]).max()), both.server.params)
    assert max(jax.tree.leaves(differ)) > 1e-4


def test_examples_that_are_arguments_are_no_constants_of_the_program():
    key = jax.random.key(0)
    state = SIM.init(key)
    closed = jax.jit(SIM.round).lower(key, state, 0).as_text()
    passed = jax.jit(SIM.round).lower(key, state, 0, SIM.data).as_text()
    assert len(passed) < len(closed) - SIM.data.federation.x.nbytes


def test_a_round_keeps_the_types_of_the_state_in_64_bit_mode():
    sim = simulator(fedasync(TASK), TASK, toy_federation(), **SIZES)

    def run(key, data):
        def one(state, t):
            return sim.round(key, state, t, data)

        return jax.lax.scan(one, sim.init(key), jnp.arange(2))[0]

    with jax.enable_x64(True):
        state = jax.eval_shape(run, jax.random.key(0), sim.data)
    assert state.server.params["Dense_0"]["kernel"].dtype == jnp.float32


def test_names_of_domains():
    federation = toy_federation()._replace(domain=jnp.arange(600) % 2)
    with pytest.raises(BadInput, match="has 2 domains, got 1 names"):
        simulator(fedavg(TASK), TASK, federation, domains=("ink",))
    sim = simulator(fedavg(TASK), TASK, toy_federation(), domains=("ink", "print"))
    key = jax.random.key(0)
    scores = jax.eval_shape(sim.score, key, sim.init(key), 0, sim.data)
    assert scores.test.total.shape == (C, 2)


@pytest.mark.slow
def test_a_loop_has_the_numbers_of_the_command():
    data = digit_domains()
    (federation,) = make_federations(data, dirichlet, [0], num_clients=10)
    task = make_task(nets.mlp(10), data.x.shape[1:], 10)
    sim = simulator(fedavg(task), task, federation, cohort=5, optimizer=optim.sgd(0.1))
    key = jax.random.key(0)
    state, step = sim.init(key), jax.jit(sim.round)
    for t in range(3):
        state, _ = step(key, state, t, sim.data)
    scores = sim.summarize(jax.jit(sim.score)(key, state, 3, sim.data))
    config = {
        "data": {"name": "digit_domains"},
        "partition": {"name": "dirichlet", "num_clients": 10},
        "model": {"name": "mlp"},
        "local": {"lr": 0.1, "batch_size": 32},
        "run": {"rounds": 3, "cohort": 5, "eval_every": 3},
    }
    run = fedjax_lab.run(config, quiet=True)
    toys.close(state.server, run.states[0].server)
    assert scores["global"] == pytest.approx(run.rows[-1]["global"], abs=0.1)
    assert scores["accuracy"]["mean"] == pytest.approx(run.rows[-1]["accuracy"]["mean"], abs=0.1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": fedconcat(TASK)}, "several stages"),
        ({"method": fedavg}, "was not called with the task"),
        ({"method": 3}, "must be a Method"),
        ({"method": fedavg(TASK).having(pooled=True)}, "a federation of one client"),
        ({"method": fedavg(TASK)._replace(validation=True)}, "validation=0.2"),
        ({"cohort": 9}, "at most 8, the number of clients, got 9"),
        ({"cohort": -1}, "cohort must be an integer of at least 0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"epochs": 1.5}, "epochs must be an integer"),
        ({"dropout": 1.0}, "dropout must be a number at least 0 and below 1, got 1.0"),
        ({"straggler": "all"}, "straggler must be a number from 0 to 1, got 'all'"),
        ({"straggler": 0.5}, "at least 2 in a round, got 1"),
        ({"task": fedavg}, "the task must be that of make_task"),
        ({"federation": [toy_federation()]}, "one of those that make_federations returns"),
        ({"optimizer": 0.1}, "such as optim.sgd(0.1), got 0.1"),
        ({"task": make_task(nets.mlp(K), (7,), K)}, "an example of the federation has [6]"),
        ({"task": make_task(nets.mlp(2), (6,), 2)}, "make the task with 4 classes"),
        ({"federation": toy_federation()._replace(y=jnp.zeros((600, 2)))}, "labels int32[]"),
    ],
)
def test_what_does_not_fit_is_refused(changed, message):
    given = {"method": fedavg(TASK), "task": TASK, "federation": toy_federation(), **changed}
    with pytest.raises(BadInput, match=re.escape(message)):
        simulator(**given)
