"""Checks rounds: the population, random streams, traces and measured work."""

import ast
import inspect
import re
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from inputs import complaint
from naive import KEYS

from fedjax_lab import losses, streams
from fedjax_lab.engine import parallel
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.population import make_population
from fedjax_lab.types import Exchange, Failures, State, Turn

ROUND = Path(simulate.__file__)


def none_by_default(path):
    """{class: the fields of each class of a file whose default is None}."""
    classes = [c for c in ast.walk(ast.parse(path.read_text())) if isinstance(c, ast.ClassDef)]
    return {
        c.name: {
            ast.unparse(field.target)
            for field in c.body
            if isinstance(field, ast.AnnAssign) and ast.unparse(field.value or field) == "None"
        }
        for c in classes
    }


def test_a_round_has_few_optional_parts():
    """Each field that may be None is a branch of every round, so that a new one needs a reason."""
    optional = none_by_default(ROUND)
    assert optional["Progress"] == optional["Round"] == optional["Count"] == set()
    assert optional["Program"] == set()
    assert optional["Lane"] <= {"held", "new", "schedule"}
    types = none_by_default(Path(inspect.getfile(Turn)))
    assert types["Turn"] == set() and types["Failures"] <= {"clock"} and len(types["Plan"]) <= 7
    text = ROUND.read_text()
    assert len(re.findall("is (?:not )?None", text)) <= 11
    assert not re.search(r"contract\.check_\w+\(|message_bytes\(", text)


def test_the_population_counts_examples_and_labels():
    for i in range(toys.C):
        rows = np.asarray(toys.FEDERATION.train[i])
        rows = rows[rows >= 0]
        assert int(toys.POPULATION.n[i]) == len(rows)
        labels = np.asarray(toys.FEDERATION.y)[rows]
        np.testing.assert_array_equal(
            toys.POPULATION.label_count[i], np.bincount(labels, minlength=toys.K)
        )
    assert float(toys.POPULATION.weight.sum()) == pytest.approx(1)
    assert toys.POPULATION.num_clients.tolist() == [toys.C] * toys.C
    np.testing.assert_allclose(toys.POPULATION.mean_n, float(toys.POPULATION.n.mean()), rtol=1e-6)


def test_clients_and_rounds_have_separate_random_streams():
    """All clients hold the same rows and draw one, which differs by client and by round."""
    federation = toys.FEDERATION._replace(train=toys.as_rows(np.tile(np.arange(400), (toys.C, 1))))
    population = make_population(federation, toys.K)
    drawn = Exchange(
        send=lambda server, id: (),
        local=lambda message, client, work: (work.draw(1).x[0], client.private),
        aggregate=lambda server, uploads, cohort: uploads,
    )
    method = fedavg(toys.TASK)._replace(round=(drawn,))
    play = jax.jit(
        partial(simulate.play_round, simulate.Program(method, toys.PLAN, toys.VECTORIZED))
    )
    state = State(jnp.zeros((toys.PLAN.cohort, toys.D)), ())
    rounds = [
        np.asarray(play(simulate.Lane(federation, population, KEYS), state, t)[0].server)
        for t in (0, 1, 0)
    ]
    assert len(np.unique(rounds[0], axis=0)) >= toys.PLAN.cohort - 1
    assert not np.allclose(np.sort(rounds[0], axis=0), np.sort(rounds[1], axis=0))
    np.testing.assert_array_equal(rounds[0], rounds[2])


def test_a_block_is_one_program_traced_once():
    """It has no callbacks or outfeeds; any number of blocks of any length costs one trace."""
    method = fedavg(toys.TASK)
    program = simulate.Program(method, toys.PLAN, toys.VECTORIZED)

    def play(*arguments):
        return simulate.play(program, *arguments)

    run = jax.jit(chex.assert_max_traces(play, n=1))
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    state, sums = simulate.init(method, KEYS, toys.C), simulate.no_progress()
    for start, count in ((0, 1), (1, 3), (4, 2)):
        state, sums = run(lane, state, sums, jnp.int32(start), jnp.int32(count))
    assert float(sums.examples) > 0
    program = str(run.trace(lane, state, sums, jnp.int32(0), jnp.int32(2)).jaxpr)
    assert "while" in program or "scan" in program
    assert not any(word in program for word in ("callback", "outfeed", "infeed", "debug_print"))


@pytest.mark.slow
def test_measured_work_includes_a_second_training():
    risk, method = losses.risk(toys.TASK), fedavg(toys.TASK)

    def twice(w_t, client, work):
        w = work.train(w_t, risk, epochs=1)
        return work.train(w, risk, epochs=3, steps=1), client.private

    one = toys.player(fedavg(toys.TASK, twice))(KEYS, 0, 1)[1]
    key = jax.random.fold_in(KEYS.cohort, 0)
    ids, _ = method.sample(key, (), toys.POPULATION, toys.PLAN.cohort)
    n = np.asarray(toys.POPULATION.n)[np.asarray(ids)]
    assert float(one.steps) == (-(-n // 8) + 3).sum()
    assert float(one.examples) == (n + 3 * np.minimum(n, 8)).sum()
    assert float(one.lane_steps) == len(n) * ((-(-n // 8)).max() + 3)
    assert 0.2 < float(one.train_loss) < 3
    plan = toys.PLAN._replace(optimizer=optax.sgd(1e30))
    _, sums = toys.player(method, plan=plan)(KEYS, 5, 3)
    assert 5 <= int(sums.diverged) <= 6


@pytest.mark.slow
def test_a_client_in_an_empty_place_takes_no_part():
    def sampled(count, shares):
        def sample(key, server, population, m):
            return jnp.arange(count), jnp.asarray(shares)

        return sample

    method = toys.make("scaffold", toys.TASK)
    short = method._replace(sample=sampled(2, [0.5, 0.5]))
    long = method._replace(sample=sampled(3, [0.5, 0.5, 0.0])).having(empty_places=True)

    def play(method):
        program = simulate.Program(method, toys.PLAN, parallel.chunked(2))
        lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
        return simulate.play_round(program, lane, simulate.init(method, KEYS, toys.C), 0)

    (one, measured), (other, with_empty) = jax.jit(lambda: (play(short), play(long)))()
    toys.close(one.private, other.private)
    assert (int(measured.drawn), int(with_empty.drawn), int(with_empty.arrived)) == (2, 2, 2)
    for field in ("examples", "steps", "lane_steps"):
        assert float(getattr(measured, field)) == float(getattr(with_empty, field))


def test_private_state_must_keep_its_shapes():
    """The error is raised before anything is compiled; no array is broadcast instead."""
    plain = fedavg(toys.TASK)
    (exchange,) = plain.round

    def init(key, num_clients):
        return plain.init(key, num_clients)._replace(private=jnp.zeros((num_clients, 3)))

    for returned in ((), np.zeros(()), np.zeros(2), (np.zeros(3),)):

        def local(message, client, work, returned=returned):
            upload, _ = exchange.local(message, client, work)
            return upload, jax.tree.map(jnp.asarray, returned)

        method = plain._replace(init=init, round=(exchange._replace(local=local),))
        message = complaint(toys.bytes_of, method)
        assert "in the shapes that `init` gave" in message


def noting(one_by_one=False):
    """A method of two exchanges whose server keeps the numbers that it drew last in each."""

    def exchange(place):
        def aggregate(server, uploads, cohort):
            numbers = jax.vmap(jax.random.uniform)(cohort.key)
            if one_by_one:
                return server.at[place, cohort.id].set(numbers)
            return server.at[place, : len(numbers)].set(numbers)

        nothing = {"send": lambda server, id: (), "local": lambda *args: ((), ())}
        return Exchange(**nothing, aggregate=aggregate)

    def init(key, num_clients):
        return State(jnp.zeros((2, num_clients)), ())

    plain = fedavg(toys.TASK).having(one_by_one=one_by_one)
    return plain._replace(init=init, round=(exchange(0), exchange(1)), newcomer=None)


@pytest.mark.slow
def test_a_server_gets_a_key_for_each_exchange_and_round():
    """The whole cohort has one key, whichever clients arrive and whatever the devices are.

    A server that aggregates one by one has one for each client.
    """
    play = toys.player(noting())
    first, second = (np.asarray(play(KEYS, t, 1)[0].server) for t in (0, 1))
    drawn = np.concatenate([first, second])[:, : toys.PLAN.cohort]
    assert (drawn == drawn[:, :1]).all() and len(set(drawn[:, 0])) == 4
    expected = jax.random.uniform(streams.server(KEYS.cohort, 1, 0))
    assert second[1, 0] == expected  # of the last exchange of round 1
    mesh = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2))
    lossy = toys.PLAN._replace(failures=Failures(dropout=0.3))
    again = toys.player(noting(), strategy=mesh, plan=lossy)(KEYS, 1, 1)[0].server
    np.testing.assert_array_equal(again, second)
    drawn = np.asarray(toys.player(noting(one_by_one=True))(KEYS, 0, 1)[0].server)
    assert len(set(drawn[drawn > 0])) == (drawn > 0).sum() == 2 * toys.PLAN.cohort
