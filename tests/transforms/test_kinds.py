"""Clients with unlike models: a method for each kind, pooled features, and what is refused."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
import unfit_methods
from inputs import complaint
from naive import KEYS
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab.experiment import traits, unlike_models
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.registry import METHODS, make_method
from fedjax_lab.models import nets, unlike
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import evaluate, simulate
from fedjax_lab.simulation.needs import NEEDS
from fedjax_lab.transforms.kinds import mixed_method

KINDS = np.resize(np.int32([0, 1]), toys.C)
FEDERATION = toys.FEDERATION._replace(traits={"kind": KINDS})


def task(width, depth=1):
    return make_task(nets.mlp(toys.K, width=width, depth=depth), (toys.D,), toys.K)


NARROW, WIDE = task(4), task(6, depth=2)
UNLIKE = unlike.mixed_task([NARROW, WIDE])
ALIKE = unlike.mixed_task([NARROW, NARROW])


def made(name, of):
    return mixed_method(functools.partial(make_method, name), of)


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
    play = functools.partial(toys.player, federation=FEDERATION)
    one, sums = play(make_method(name, NARROW))(KEYS, 0, 2)
    two, sums_of_kinds = play(made(name, ALIKE))(KEYS, 0, 2)
    toys.close(two.server, one.server)
    of_kind = jax.tree.map(lambda a, b: jnp.where(_aligned(KINDS, a) == 0, a, b), *two.private)
    toys.close(of_kind, one.private)
    toys.close((sums.steps, sums.train_loss), (sums_of_kinds.steps, sums_of_kinds.train_loss))


def _aligned(numbers, leaf):
    return numbers.reshape(-1, *[1] * (leaf.ndim - 1))


@pytest.mark.slow
def test_other_kinds_of_a_client_do_not_move():
    """The state of a client's own kind moves, and the others are as they were."""
    method = made("fedgh", UNLIKE)
    first = simulate.init(method, KEYS, toys.C)
    state, _ = toys.player(method, federation=FEDERATION)(KEYS, 0, 4)
    for kind, (before, after) in enumerate(zip(first.private, state.private, strict=True)):
        for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True):
            np.testing.assert_array_equal(a[kind != KINDS], b[kind != KINDS])
        moved = before.params["Dense_0"]["kernel"] != after.params["Dense_0"]["kernel"]
        assert moved[kind == KINDS].any()


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
    drawn = [dealt(order, seed) for seed in (0, 0, 1)]
    assert [np.bincount(each).tolist() for each in drawn] == [[7, 3]] * 3
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    np.testing.assert_array_equal(dealt(order[::-1], 0), drawn[0][::-1])
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
