"""Transforms of any method: those that change nothing, and those that a config names."""

import functools
import re
from pathlib import Path
from types import ModuleType

import naive
import numpy as np
import own_parts
import pytest
import toys
import wrapped
from inputs import complaint
from naive import KEYS

from fedjax_lab import wire
from fedjax_lab.commands import descriptions
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve, sources_of
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.papers.hfedf import client_embeddings
from fedjax_lab.running import runner
from fedjax_lab.transforms import cohort, server_state, uplink
from fedjax_lab.types import Failures, State


def test_rows_contain_what_the_method_and_its_transforms_record():
    def listen(exchange, server, uploads, cohort):
        return server._replace(extra=server.extra + 1)

    plain = toys.bare(toys.make("fedavg"))
    method = plain._replace(record=lambda state: {"first": state.server})
    for name in ("second", "third"):
        recorded = functools.partial(lambda name, extra: {name: extra}, name)
        method = server_state.with_state(method, lambda key: 0, listen, recorded)
    server = method.init(KEYS.init, 2).server
    for _ in range(2):
        server = method.round[0].aggregate(server, (), toys.POPULATION)
    rows = method.record(State(server._replace(base=server.base._replace(base=7)), ()))
    assert rows == {"first": 7, "second": 0, "third": 2}
    silent = server_state.with_state(plain, lambda key: 0, listen)
    assert silent.record is None


def with_nothing_changed(method):
    """Each update goes through both levels of transforms and is not changed."""
    method = uplink.changed(method, lambda update, client, key: [u * 1.0 for u in update])
    if method.extra.one_by_one:
        return method
    return cohort.changed(method, lambda updates, cohort: [u + 0 for u in updates])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", wrapped.DIFFERENT)
def test_transforms_that_change_no_update_equal_the_method_bit_for_bit(name):
    plain = toys.make(name)
    expected, _ = toys.player(plain)(KEYS, 0, 2)
    toys.same(toys.player(with_nothing_changed(plain))(KEYS, 0, 2)[0], expected)


@pytest.mark.parametrize("transform", [("attack", "gaussian"), ("aggregator", "krum")])
def test_uploads_that_are_not_updates_are_not_transformed(transform):
    """Clients send the model, but declare that it is not an update."""
    (exchange,) = toys.make("fedavg").round
    described = exchange._replace(
        local=lambda message, client, work: (message, client.private), updates=wire.all_kept
    )
    plain = toys.make("fedavg")._replace(round=(described,))
    plan = toys.PLAN._replace(failures=Failures(attackers=0.5))
    expected, _ = toys.player(plain, plan=plan)(KEYS, 0, 1)
    made = registry.look_up(*transform)(plain, toys.NORM)
    toys.same(toys.player(made, plan=plan)(KEYS, 0, 1)[0], expected)


DESCRIBING = {  # methods whose clients first describe their data
    "client2vec by class": {"index": "class_prototypes"},
    "hfedf": {"embedding": "autoencoder", "embedding_dim": "2"},
}
ON_DESCRIBING = [("client2vec by class", "downlink", "qsgd"), ("hfedf", "compression", "top_k")]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The config file of six clients with small images."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (200, 8, 8, 1), dtype=np.uint8), rng.integers(0, 3, 200)
    np.savez(folder / "data.npz", x=x, y=y)
    local, run = {"lr": 1e-3, "batch_size": 16}, {"rounds": 2, "eval_every": 1}
    return toys.write_config(folder, local=local, run=run)


@functools.cache
def described(images, case, *transform):
    """The metrics of a run of DESCRIBING, plain or with a transform (its kind and its name)."""
    settings = {f"method_{key}": value for key, value in DESCRIBING[case].items()}
    if transform:
        settings[f"{transform[0]}_name"] = transform[1]
    return runner.run(built(images, case.split()[0], **settings), quiet=True).metrics


@pytest.mark.exhaustive
@pytest.mark.parametrize(("case", "kind", "transform"), ON_DESCRIBING)
def test_stages_that_describe_data_are_not_compressed(
    case, kind, transform, images, monkeypatch, small_network
):
    """The first stage has the plain method's bytes; compression reduces those of later stages."""
    monkeypatch.setattr(client_embeddings, "EPOCHS", 1)
    plain, made = described(images, case), described(images, case, kind, transform)
    sent = [[(row["bytes_up"], row["bytes_down"]) for row in rows] for rows in (plain, made)]
    if kind != "downlink":
        assert sent[0][0] == sent[1][0]
    fewer = [now < before for now, before in zip(sent[1][-1], sent[0][-1], strict=True)]
    assert fewer == [kind == "compression", kind == "downlink"]


toy = toys.config_file(run={"rounds": 2, "eval_every": 2})


def built(toy, method="fedavg", **overrides):
    named = [(key.replace("_", ".", 1), value) for key, value in overrides.items()]
    return experiment.build(resolve(load_config(f"{toy}:{method}"), named))


def test_a_config_names_transforms_and_their_settings(toy):
    made = built(toy, attack_name="gaussian", attack_share="0.34", aggregator_name="krum")
    attack = made.config.attack.to_dict()
    assert (attack["name"], attack["share"], attack["std"]) == ("gaussian", 0.34, 1.0)
    assert made.config.aggregator.name == "krum" and made.config.aggregator.attackers == 0.2
    assert made.simulation.plan.failures.attackers == 0.34
    (exchange,) = made.simulation.stages[0].method.round
    assert exchange.aggregate.__wrapped__.exchange.aggregate.__name__ == "aggregate"
    plain = built(toy).simulation
    assert plain.stages[0].method.round[0].aggregate.__name__ == "aggregate"
    assert plain.plan.failures.attackers == 0


def test_a_run_says_who_attacks_and_refuses_clients_and_rounds_that_do_not_exist(toy):
    def said(**attack):
        settings = {f"attack_{key}": value for key, value in attack.items()}
        return built(toy, attack_name="little_is_enough", **settings).remarks[-1]

    start = "attack little_is_enough: "
    alone = "1 of 6 clients attack (0.1 of 6 is less than one), who alone changes nothing"
    assert said(share="0.1") == start + alone
    assert said(clients="0,5", last="1") == f"{start}2 of 6 clients attack in rounds 1 to 1"
    assert said(per_round="2") == f"{start}2 of 6 clients of a round attack"
    for settings, words in (
        ({"clients": "1,6"}, "config.attack.clients must be from 0 to 5 in this run, got 6"),
        ({"per_round": "7"}, "config.attack.per_round must be from 0 to 6 in this run, got 7"),
        ({"first": "3"}, "config.attack.first must be from 1 to 2 in this run, got 3"),
        ({"last": "3"}, "config.attack.last must be from 0 to 2 in this run, got 3"),
    ):
        assert complaint(said, **settings) == words
    honest = built(toy, attack_name="sign_flip", attack_share="0").simulation.plan.failures
    assert not honest.attackers


@pytest.mark.parametrize(
    ("method", "aggregator", "message"),
    [
        ("central", "median", "it trains on the examples of all clients at once"),
        ("fedavg", "krum", "Krum needs at least 2f + 3 = 7 clients in a round for f=2 attackers"),
        ("local", "krum", "its clients upload nothing"),
    ],
)
def test_unsupported_combinations_are_rejected_when_the_run_is_built(
    toy, method, aggregator, message
):
    more = {"aggregator_attackers": "0.4"} if aggregator == "krum" else {}
    said = complaint(built, toy, method, aggregator_name=aggregator, **more)
    assert said.startswith(f"method {method} with aggregator {aggregator}: {message}")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attack_name", "sign_flop", "did you mean 'sign_flip'?"),
        ("aggregator_name", "medain", "did you mean 'median'?"),
        ("attack_share", "1.5", "config.attack.share must be from 0 to 1"),
        ("aggregator_name", "own.py:flat", "it must take (method, task), then"),
    ],
)
def test_bad_names_and_settings_are_rejected(toy, key, value, message, tmp_path, monkeypatch):
    own_parts.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert message in complaint(built, toy, **{key: value})


OWN = '''
from fedjax_lab.transforms import uplink

def half(method, task, *, factor: float = 0.5):
    """factor: of each update."""
    return uplink.changed(method, lambda update, client, key: [factor * u for u in update])
'''


def test_a_transform_may_be_user_defined(toy, tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    made = built(toy, aggregator_name="half.py:half", aggregator_factor="0.25")
    assert made.config.aggregator.factor == 0.25
    assert list(sources_of(made.config)) == ["half.py:half"]
    assert (
        descriptions.section_meanings("aggregator", made.config.aggregator)["factor"]
        == "of each update"
    )


# The transforms in docs/transforms.md.


PAGE = (Path(__file__).parents[2] / "docs" / "transforms.md").read_text()
(CODE,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture(scope="module")
def page():
    """The Python file on the page, as a module."""
    module = ModuleType("own_transforms")
    exec(compile(CODE, "docs/transforms.md", "exec"), vars(module))
    return module


def moved(method):
    """How far one round moves each weight of the server's model."""
    first = method.init(naive.KEYS.init, toys.C).server
    state, _ = toys.player(method)(naive.KEYS, 0, 1)
    return np.abs(naive.vector(state.server) - naive.vector(first))


@pytest.mark.slow
def test_the_transforms_of_the_page_bound_how_far_a_round_moves_the_model(page):
    """The majority vote moves each weight by one step; the other bounds the distance."""
    plain = toys.make("fedavg", toys.TASK)
    distance = moved(page.majority_vote(plain, toys.TASK, step=0.5))
    np.testing.assert_allclose(distance[distance > 1e-3], 0.5, rtol=1e-4)
    assert np.mean(distance > 1e-3) > 0.5
    assert 0.0005 < moved(page.dampened(plain, toys.TASK, limit=0.001)).max() < 0.0011
