"""Clients with unlike models: a method for each kind, pooled features, and what is refused."""

import functools
import re

import jax
import numpy as np
import pytest
import toys
import unfit_methods
from inputs import complaint
from naive import KEYS
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab import tree
from fedjax_lab.engine import flops, parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.host import playing
from fedjax_lab.engine.input import Host
from fedjax_lab.experiment import traits, unlike_models
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.registry import METHODS, make_method
from fedjax_lab.models import nets, unlike
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import by_kind, evaluate, simulate
from fedjax_lab.simulation.by_kind import deal_kinds
from fedjax_lab.simulation.needs import NEEDS
from fedjax_lab.simulation.population import make_population
from fedjax_lab.transforms.kinds import mixed_method
from fedjax_lab.types import Kind

KINDS = np.int32([0, 0, 1, 0, 1, 0, 0, 0])
FEDERATION = toys.FEDERATION._replace(traits={"kind": Kind(KINDS, (6, 2))})
VECTORIZED = deal_kinds(parallel.vectorized())


def task(width, depth=1):
    return make_task(nets.mlp(toys.K, width=width, depth=depth), (toys.D,), toys.K)


NARROW, WIDE = task(4), task(6, depth=2)
UNLIKE = unlike.mixed_task([NARROW, WIDE])
ALIKE = unlike.mixed_task([NARROW, NARROW])


def made(name, of):
    return mixed_method(functools.partial(make_method, name), of)


def play(method, rounds, strategy=VECTORIZED, federation=FEDERATION):
    return toys.player(method, strategy, federation=federation)(KEYS, 0, rounds)


def on_mesh():
    """Two devices that divide the clients' state and the examples, and a federation for them."""
    mesh = parallel.on_mesh(parallel.make_mesh(2), parallel.sequential(), True, True)
    return deal_kinds(mesh, 2), toys.divided(2)._replace(traits=FEDERATION.traits)


STRATEGIES = {
    "vectorized": lambda: (VECTORIZED, FEDERATION),
    "sequential": lambda: (deal_kinds(parallel.sequential()), FEDERATION),
    "chunked": lambda: (deal_kinds(parallel.chunked(2)), FEDERATION),
    "on a mesh": on_mesh,
}


def test_adaptive_pooling():
    """PyTorch's windows overlap where the widths do not divide: 5 numbers to 3, and 4 to 2."""
    h = np.arange(5.0)
    np.testing.assert_allclose(h @ unlike.pooling(5, 3), [0.5, 2, 3.5])
    np.testing.assert_allclose(h[:4] @ unlike.pooling(4, 2), [0.5, 2.5])


def test_pooled_features():
    """The head gets pooled features, also when they replace its input or another layer's."""
    assert UNLIKE.kinds[0] is NARROW and UNLIKE.shared is NARROW
    pooled, x = UNLIKE.kinds[1], toys.normal(0, 3, toys.D)
    w = toys.random_weights(jax.eval_shape(pooled.init, KEYS.init))
    out = pooled.apply(w, x)
    head = w.params["head"]
    assert head["kernel"].shape == (4, toys.K)
    full = w._replace(params={**w.params, "head": WIDE.init(KEYS.init).params["head"]})
    h = WIDE.apply(full, x).features @ unlike.pooling(6, 4)
    toys.close(out.features, h)
    toys.close(out.logits, h @ head["kernel"] + head["bias"])
    for layer, given in (("head", out.features), ("Dense_1", None)):
        toys.close(pooled.apply_at(layer, w, x, given).logits, out.logits)
    between = pooled.apply_at("Dense_1", w, x).features
    toys.close(pooled.apply_at("Dense_1", w, x, between).features, out.features)
    assert between.shape == (3, 6)


@pytest.mark.parametrize("name", exhaustive_but(["lg_fedavg"], ["lg_fedavg", "fedproto", "fml"]))
def test_kinds_of_one_model_are_one_kind(name):
    """Two kinds with the same architecture and first weights: the server, clients and steps."""
    one, sums = toys.player(make_method(name, NARROW))(KEYS, 0, 2)
    two, sums_of_kinds = play(made(name, ALIKE), 2)
    toys.close(two.server, one.server)
    for i in range(toys.C):
        toys.close(by_kind.entry(two.private, i).state, tree.take(one.private, i))
    toys.close((sums.steps, sums.train_loss), (sums_of_kinds.steps, sums_of_kinds.train_loss))


@pytest.mark.parametrize(
    "name", ["vectorized", *exhaustive_but(["on a mesh"], ["sequential", "chunked", "on a mesh"])]
)
def test_clients_train_as_among_clients_with_their_net(name):
    """Without a server, a client's model is that of a run in which all have its net."""
    strategy, federation = STRATEGIES[name]()
    state, _ = play(made("local", UNLIKE), 3, strategy, federation)
    for kind, net in enumerate(UNLIKE.kinds):
        alone, _ = toys.player(make_method("local", net))(KEYS, 0, 3)
        for i in np.flatnonzero(kind == KINDS):
            toys.close(by_kind.entry(state.private, i).state, tree.take(alone.private, i))


def operations(method, strategy, federation):
    """The operations of a traced round of all clients, in which each loop counts once."""
    population = make_population(federation, toys.K)
    plan = toys.PLAN._replace(cohort=toys.C)
    lane = simulate.Lane(federation, population, KEYS)
    state = jax.eval_shape(lambda: simulate.init(method, KEYS, toys.C, population.traits))
    program = simulate.Program(method, plan, strategy)
    return flops.count(
        jax.make_jaxpr(functools.partial(simulate.play_round, program))(lane, state, 0)
    )


@pytest.mark.slow
def test_a_cohort_costs_the_sum_of_its_own_nets():
    """All clients train at once, six of eight with one net and two with a larger one."""
    tasks = unlike.mixed_task([task(64), task(256, depth=2)])
    whole = operations(made("local", tasks), VECTORIZED, FEDERATION)
    few, many = (
        operations(make_method("local", net), toys.VECTORIZED, toys.FEDERATION)
        for net in tasks.kinds
    )
    np.testing.assert_allclose(whole, (6 * few + 2 * many) / toys.C, rtol=0.01)


def engine_run(method, **options):
    """The model of each client after a run of six rounds, [seeds] of [C], and its scores."""
    engine = Engine(toys.simulation(method, 6, federation=FEDERATION, **options))
    engine.compile()
    while engine.played < 6:
        engine.play(6 - engine.played)
    clients = range(toys.C)
    models = [[by_kind.entry(state.private, i) for i in clients] for state in engine.final_states()]
    return models, [scores.test for scores in engine.evaluate()]


def on_three_devices():
    mesh = parallel.on_mesh(parallel.make_mesh(3), parallel.sequential(), by_client=True)
    return {"strategy": deal_kinds(mesh, 3)}


HOSTS = {
    "memory": lambda: {"host": Host(), "strategy": VECTORIZED},
    "stream": lambda: {"host": Host(stream=True), "strategy": VECTORIZED},
    "mesh": lambda: {"host": Host(on_disk=True), **on_three_devices()},
    "devices": on_three_devices,
}


@pytest.mark.parametrize("name", exhaustive_but(["memory"], HOSTS))
def test_state_on_the_host_is_that_of_the_devices(name, monkeypatch):
    """Blocks of two rounds, in which clients of unlike kinds occur again."""
    monkeypatch.setattr(playing, "MOST_ROUNDS", 2)
    method = made("fedproto", UNLIKE)
    toys.close(
        engine_run(method, seeds=[0], **HOSTS[name]()),
        engine_run(method, seeds=[0], strategy=VECTORIZED),
    )


@pytest.mark.parametrize("name", ["fedavg", "fedper", "pfedsim"])
def test_method_that_sends_models_is_refused(name):
    text = complaint(made, name, UNLIKE)
    assert "docs/unlike_clients.md" in text and "\n" not in text and "config.model.kinds" in text


@pytest.mark.exhaustive
def test_methods_that_fit():
    """The page names all methods that unlike models can use, and no others."""

    def fits(name):
        try:
            made(name, UNLIKE)
        except ValueError as error:
            texts = "config.model.kinds", "embedding", NEEDS["adapters"].reason
            assert any(text in str(error) for text in texts)
            return False
        return True

    listed = unfit_methods.listed("unlike_clients.md")
    assert re.findall(r"`(\w+)`", listed) == sorted(filter(fits, METHODS))


def test_shares():
    """As many clients of each kind as their shares say, drawn anew for each seed."""

    def dealt(order, seed):
        return traits.kind((0.7, 0.3), traits.Dealt(order, order, seed))

    order = np.arange(10)
    kinds = [dealt(order, seed) for seed in (0, 0, 1)]
    drawn = [kind.number for kind in kinds]
    assert [np.bincount(each).tolist() for each in drawn] == [[7, 3]] * 3
    assert [kind.most for kind in kinds] == [(7, 3)] * 3
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    np.testing.assert_array_equal(dealt(order[::-1], 0).number, drawn[0][::-1])
    assert "of 1 clients, a kind has none" in complaint(dealt, order[:1], 0)
    model = {"name": "mlp", "kinds": ("lenet", "nets.py:mlp"), "shares": ()}
    assert unlike_models.names(model) == ("mlp", "lenet", "mlp")
    np.testing.assert_allclose(unlike_models.shares(model), 1 / 3)
    assert unlike_models.shares({**model, "kinds": ()}) == ()


def test_accuracy_by_kind():
    """Kinds whose nets have one name are one group."""
    names = {0: "mlp", 1: "lenet", 2: "mlp"}
    accuracy = {"per_client": [80.0, 40.0, None, 60.0]}
    means = evaluate.by_group(accuracy, np.int32([0, 1, 1, 2, 0]), names)
    assert means == {"mlp": 70.0, "lenet": 40.0}


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("model", {"kinds": ("lenett",)}, "no model 'lenett'; did you mean 'lenet'?"),
        ("model", {"kinds": ("lenet",), "shares": (0.5, 0.6)}, "config.model.shares must be 2"),
        ("model", {"kinds": ("lenet",), "shares": (1.0,)}, "config.model.shares must be 2"),
        ("model", {"kinds": ("lenet",), "shares": (1.5, -0.5)}, "numbers above 0"),
        ("model", {"kinds": (3,)}, "config.model.kinds must be text"),
    ],
)
def test_bad_kinds(section, values, words):
    text = complaint(resolve, {section: values})
    assert words in text and "\n" not in text


def test_settings_of_one_model_are_refused():
    config = resolve({"model": {"kinds": ("mlp",)}, "adapter": {"name": "frozen"}})
    assert "config.adapter.name='frozen'" in complaint(unlike_models.check, config)


def test_net_that_does_not_fit_is_refused(tmp_path):
    config = {"model": {"kinds": ("lenet",)}, "method": {"name": "local"}}
    assert "images" in complaint(toys.build, tmp_path, **config)


def deep(num_classes):
    """A net of a user, with other settings than the defaults of its function."""
    return nets.mlp(num_classes, width=6, depth=2)


@pytest.mark.slow
def test_run(tmp_path):
    """A run of a config, whose rows have the accuracy by net; the same one after another."""
    config = toys.config(
        tmp_path,
        model={"kinds": (deep,), "shares": (0.5, 0.5)},
        method={"name": "fd"},
        run={"rounds": 2},
        data={"test": 0.2},
    )
    row = fedjax_lab.run(config).rows[-1]
    assert [*row["kinds"]] == ["mlp", "deep"] and "flops" not in row
    np.testing.assert_allclose(np.mean([*row["kinds"].values()]), row["accuracy"]["mean"])
