"""Clients with their own epochs, learning rate and batch size: config.local.per_client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint

from fedjax_lab import losses, optim, streams
from fedjax_lab.experiment import joint, local_settings
from fedjax_lab.experiment.traits import Dealt
from fedjax_lab.running.runner import run
from fedjax_lab.simulation import asynchronous, failures
from fedjax_lab.simulation.client_work import make_work, work_of
from fedjax_lab.simulation.clock import Clock, Pace
from fedjax_lab.simulation.population import population_on_host
from fedjax_lab.types import Failures, LocalSettings

KEY = jax.random.key(1)
LOCAL = {"epochs": 2, "steps": 0, "lr": 0.1, "batch_size": 16}
SETTINGS = LocalSettings(jnp.int32(3), jnp.float32(0.5), jnp.int32(5))
PLAN = toys.PLAN._replace(
    optimizer=optim.sgd(0.1, 0.9), optimizer_of=lambda rate: optim.sgd(0.1 * rate, 0.9)
)


def table(folder, text, **local):
    path = folder / "settings.csv"
    path.write_text(text)
    return local_settings.read({**LOCAL, **local, "per_client": str(path)})


def test_a_table_by_client_follows_clients_that_are_renumbered(tmp_path):
    read = table(tmp_path, "client,lr,epochs\n3,0.2,\n0,,7\n")
    clients = Dealt(np.array([1, 3, 0, 2]), np.full(4, 9), 0)
    settings = local_settings.client_settings(read, LOCAL, clients)
    np.testing.assert_array_equal(settings.work, [2, 2, 7, 2])
    np.testing.assert_array_equal(settings.rate, np.float32([1, 2, 1, 1]))
    assert settings.batch_size is None


def test_a_table_by_size_holds_from_so_many_examples(tmp_path):
    read = table(tmp_path, "examples,batch_size\n100,64\n10,8\n")
    clients = Dealt(np.arange(5), np.array([9, 10, 99, 100, 1000]), 0)
    settings = local_settings.client_settings(read, LOCAL, clients)
    np.testing.assert_array_equal(settings.batch_size, [16, 8, 8, 64, 64])
    assert settings.work is None and settings.rate is None
    assert table(tmp_path, "client,lr,epochs\n1,0.1,\n3,,2\n") is None  # as the config


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "the first column of"),
        ("lr,client\n", "must be client or examples"),
        ("client\n0\n", "must have one column for each setting"),
        ("client,lr,lr\n", "must have one column for each setting"),
        ("client,epoch\n", "unknown column 'epoch' in"),
        ("client,steps\n", "the column steps of"),
        ("client,lr\n0,-0.1\n", "line 2 of"),
        ("client,lr\n0,nan\n", "line 2 of"),
        ("client,epochs\n0,0\n", "whole number of at least 1 for each setting, not 0,0"),
        ("client,epochs\n0,1.5\n", "line 2 of"),
        ("client,epochs\n0,1,2\n", "not 0,1,2"),
        ("client,epochs\n0," + "9" * 200_000 + "\n", "line 2 of"),
        ("client,epochs\n0,1\n0,2\n", "client 0 is repeated in"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, text, words):
    assert words in complaint(table, tmp_path, text)


def test_settings_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "settings.csv"
    path.write_text("client,epochs\n6,2\n")
    message = complaint(toys.build, tmp_path, local={"per_client": str(path)})
    assert "client 6 does not exist in" in message and "are 0 .. 5" in message
    other = complaint(toys.build, tmp_path, local={"per_client": str(path), "steps": 3})
    assert "the column epochs of" in other and "must be steps" in other
    assert "there is no file" in complaint(toys.build, tmp_path, local={"per_client": "no.csv"})
    path.write_text("client,batch_size\n1,4\n")
    other = complaint(toys.build, tmp_path, local={"per_client": str(path), "accumulate": 4})
    assert "the column batch_size cannot be combined with config.local.accumulate=4" in other
    stages = {"method": {"name": "client2vec"}, "embedding": {"name": "stand_in", "size": 32}}
    other = complaint(toys.build, tmp_path, local={"per_client": str(path)}, **stages)
    assert "trains a stage in batches of another size" in other
    private = {"privacy": {"name": "example_level", "noise": 1.0}}
    path.write_text("client,epochs\n1,2\n")
    message = complaint(toys.build, tmp_path, local={"per_client": str(path)}, **private)
    assert "per_client cannot be combined with config.privacy.name=example_level" in message
    path.write_text("client,lr\n1,0.2\n")
    parts = [toys.build(tmp_path, local={"per_client": str(path), "lr": lr}) for lr in (0.1, 0.2)]
    assert "their own learning rates" in complaint(joint.join, parts)


def trained(plan, settings=None):
    rows = toys.FEDERATION.train[2]

    @jax.jit
    def once(settings):
        work, trainings = make_work(toys.FEDERATION, rows, plan, KEY, settings=settings)
        return work.train(toys.TASK.init(KEY), losses.risk(toys.TASK)), trainings, work.steps

    return once(settings)


@pytest.mark.slow
def test_a_client_trains_as_if_all_had_its_numbers():
    """The batches hold the same examples; their gradients differ by rounding."""
    alone = PLAN._replace(epochs=3, batch_size=5, optimizer=optim.sgd(0.05, 0.9))
    toys.close(trained(PLAN, SETTINGS), trained(alone), rtol=1e-5, atol=1e-6)
    same = LocalSettings(jnp.int32(PLAN.epochs), jnp.float32(1), jnp.int32(99))  # cut to the plan's
    toys.same(trained(PLAN, same), trained(PLAN))


@pytest.mark.slow
def test_stragglers_and_asynchronous_clients_have_their_own_work():
    settings = LocalSettings(work=jnp.array([1, 2, 9] * 100))
    turn = toys.turn(streams.clients(KEY, 0, jnp.arange(300)))
    late = PLAN._replace(failures=Failures(straggler=1.0))
    late = failures.stragglers(late, turn._replace(work=work_of(settings))).work
    late = np.asarray(late).reshape(-1, 3)
    np.testing.assert_array_equal(np.unique(late[:, 2]), np.arange(1, 9))
    assert (late[:, :2] == 1).all()
    plan = PLAN._replace(failures=Failures(straggler=0.5))
    all_alike = turn._replace(work=jnp.full(300, plan.work))
    toys.same(failures.stragglers(plan, all_alike).work, failures.stragglers(plan, turn).work)
    pace = Pace(np.ones(2, np.float32), np.zeros(2, np.float32))
    rules = asynchronous.Rules(updates=4, buffer=1, concurrency=2, work=np.array([2, 7]))
    schedule, _ = asynchronous.make_schedule(Clock(jnp.ones_like), pace, rules, 0, 0)
    np.testing.assert_array_equal(schedule.ids[:, 0], [0, 0, 0, 1])  # 2, 4, 6 and 7 seconds


@pytest.mark.parametrize("concurrency", [0, 3])
def test_tasks_of_clients_with_more_epochs_take_longer(tmp_path, concurrency):
    """Also where new clients, which have settings too, take no part in training."""
    path = tmp_path / "settings.csv"
    path.write_text("client,epochs\n1,3\n")

    def built(**local):
        clock = {"name": "log_normal", "sigma": 0.0, "concurrency": concurrency}
        more = {"partition": {"new_clients": 0.34}, "run": {"cohort": 2}}
        return toys.build(tmp_path, local=local, clock=clock, **more).simulation

    plain, longer = built(), built(per_client=str(path))
    ratio = longer.seeds[0].task_seconds / plain.seeds[0].task_seconds
    np.testing.assert_allclose(sorted(ratio), [1, 1, 1, 3], rtol=1e-4)


def rows_of(result):
    return [{**row, "seconds": 0} for row in result.metrics]


@pytest.mark.exhaustive
def test_runs_with_a_table(tmp_path):
    """Equal numbers change nothing, unlike ones do; a run resumes, but not with another table."""
    path = tmp_path / "settings.csv"

    def built(rounds, text="", **engine):
        local = {"epochs": 2, "schedule": "exponential"}
        if text:
            path.write_text(text)
            local |= {"per_client": str(path)}
        given = {"rounds": rounds, "eval_every": 2, "cohort": 4, "straggler": 0.5}
        return toys.build(tmp_path, (0, 1), local=local, run=given, engine=engine)

    plain = run(built(4), quiet=True)
    equal = run(built(4, "examples,epochs,lr,batch_size\n0,2,0.1,16\n"), quiet=True)
    assert rows_of(equal) == rows_of(plain)
    unlike = "client,epochs,lr,batch_size\n0,5,0.2,4\n4,1,,\n"
    whole = run(built(4, unlike), tmp_path / "whole", quiet=True)
    assert rows_of(whole) != rows_of(plain)
    chunked = run(built(4, unlike, strategy="chunked", chunk=2), quiet=True)
    losses_of = [[row["loss"]["mean"] for row in result.metrics] for result in (whole, chunked)]
    np.testing.assert_allclose(*losses_of, rtol=1e-4)
    run(built(2, unlike), tmp_path / "twice", quiet=True)
    other = built(4, "client,lr\n0,0.5\n")
    message = complaint(run, other, tmp_path / "twice", resume=True, quiet=True)
    assert "local.per_client of seed 0" in message
    twice = run(built(4, unlike), tmp_path / "twice", resume=True, quiet=True)
    assert rows_of(twice) == rows_of(whole)


def test_a_central_run_has_no_clients_and_a_plan_has_the_largest_batch(tmp_path):
    path = tmp_path / "settings.csv"
    path.write_text("client,batch_size\n0,20\n1,24\n")
    local = {"per_client": str(path)}
    simulation = toys.build(tmp_path, local=local).simulation
    assert simulation.plan.batch_size == 24 and not simulation.plan.equal_steps
    population = population_on_host(simulation.seeds[0].federation, 3)
    sizes = population.traits["settings"].batch_size
    np.testing.assert_array_equal(sizes, [20, 24, 16, 16, 16, 16])
    pooled = toys.build(tmp_path, local=local, method={"name": "central"}).simulation
    assert pooled.seeds[0].training.traits == {} and pooled.plan.batch_size == 16
