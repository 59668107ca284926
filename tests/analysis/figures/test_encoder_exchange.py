"""FedConcat's encoder exchange on toy features and a small net."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from toys import FEDERATION, TASK

from fedjax_lab import losses, optim, tree
from fedjax_lab.commands import figures
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.papers.fedconcat import encoder_figures
from fedjax_lab.running import runner
from fedjax_lab.simulation.client_work import fetch
from fedjax_lab.types import Plan

SIZES = [30, 10]
MODELS = jax.vmap(TASK.init)(jax.random.split(jax.random.key(0), 2))
KEY = jax.random.key(1)
PLAN = Plan(1, cohort=2, batch_size=8, epochs=2, optimizer=optim.sgd(0.01, 0.9), objective=None)


def test_encoders_are_concatenated_and_averaged():
    """Features are side by side; averaged parameters are weighted by size."""
    encoders = encoder_figures.make_encoders(MODELS, SIZES)
    x = FEDERATION.x[:9]
    one, two, both = (
        encoder_figures.encode(TASK, encoders[name], x)
        for name in ("encoder 1", "encoder 2", "concatenated")
    )
    np.testing.assert_array_equal(both, np.concatenate([one, two], axis=1))
    dense = MODELS.params["Dense_0"]  # the only hidden layer
    naive = np.maximum(x @ dense["kernel"][1] + dense["bias"][1], 0)
    np.testing.assert_allclose(two, naive, rtol=1e-5, atol=1e-6)
    (average,) = encoders["averaged"]
    for mean, leaf in zip(jax.tree.leaves(average), jax.tree.leaves(MODELS), strict=True):
        np.testing.assert_allclose(mean, 0.75 * leaf[0] + 0.25 * leaf[1], rtol=1e-6, atol=1e-7)


def test_the_linear_classifier_reaches_the_loss_of_logistic_regression():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    x = rng.normal(size=(3, 5))[y] / 2 + rng.normal(size=(150, 5))  # the classes overlap
    model = make_task(nets.mlp(3, depth=0), (5,), 3)
    plan = PLAN._replace(batch_size=50, epochs=300, optimizer=optim.sgd(0.05, 0.9))
    fit = jax.jit(partial(encoder_figures.fit, model, losses.risk(model), plan=plan, key=KEY))
    fitted_loss = fit(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32))
    solved = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(x, y)
    least = log_loss(y, solved.predict_proba(x))
    assert 0.3 < least < 0.9 * np.log(3)  # neither separable nor hopeless
    np.testing.assert_allclose(fitted_loss, least, rtol=2e-3)


def test_losses_of_constant_predictions_are_the_entropy_and_the_variance():
    batch = fetch(FEDERATION, jnp.arange(40), PLAN)
    cross_entropy, squared_error = encoder_figures.constant(batch)
    share = np.bincount(batch.y) / 40
    np.testing.assert_allclose(cross_entropy, -np.mean(np.log(share[np.asarray(batch.y)])))
    mean = np.mean(batch.x, axis=0)
    np.testing.assert_allclose(squared_error, np.mean((batch.x - mean) ** 2), rtol=1e-5)


@pytest.mark.slow
def test_each_row_uses_the_right_encoder_and_examples(monkeypatch):
    data = [
        fetch(FEDERATION, rows[:n], PLAN) for rows, n in zip(FEDERATION.train, SIZES, strict=False)
    ]
    both = np.concatenate([data[0].x, data[1].x])
    one, two = (encoder_figures.encode(TASK, [tree.take(MODELS, i)], both) for i in range(2))

    def sums(num_classes, plan, features, data, key):
        return jnp.sum(features), jnp.sum(data.x)

    monkeypatch.setattr(encoder_figures, "probe", sums)
    errors = encoder_figures.exchange(TASK, MODELS, data, PLAN, KEY)
    expected = {
        "client 1": {"encoder 1": one[:30], "encoder 2": two[:30]},
        "client 2": {"encoder 2": two[30:], "encoder 1": one[30:]},
        "both": {"concatenated": jnp.concatenate([one, two]), "encoder 1": one, "encoder 2": two},
    }
    for (task, rows), x in zip(expected.items(), [both[:30], both[30:], both], strict=True):
        assert list(errors[task]) == [*encoder_figures.PUBLISHED[task], "none"]
        for encoder, features in rows.items():
            np.testing.assert_allclose(errors[task][encoder], (features.sum(), x.sum()), rtol=1e-4)


def test_anything_but_two_different_clients_is_rejected():
    assert encoder_figures.two_clients("3,39", 40) == [3, 39]
    for text in ("0", "0,0", "0,40", "0,1,2", "a,1", "-1,0", ""):
        message = complaint(encoder_figures.two_clients, text, 40)
        assert "two different numbers in 0..39" in message


@pytest.mark.exhaustive
def test_the_exchange_between_two_clients_of_a_finished_run(tmp_path, capsys):
    """The models are those of the run; the probes train for as many epochs as the run has."""
    sections = {
        "partition": {"name": "iid", "num_clients": 3},
        "local": {"epochs": 2, "batch_size": 64},
        "run": {"rounds": 2},
    }
    for method in ("local", "ifca"):
        e = toys.build(tmp_path, [4], method={"name": method}, **sections)
        runner.run(e, tmp_path / method, quiet=True)
    assert figures.main(["encoder_exchange", str(tmp_path / "local"), "--clients=2,0"]) == 0
    numbers = json.loads((tmp_path / "local/figures/numbers.json").read_text())
    assert (numbers["seed"], numbers["clients"], numbers["epochs"]) == (4, [2, 0], 4)
    assert numbers["losses"]["client 1"]["encoder 1"][0] < numbers["losses"]["client 1"]["none"][0]
    assert "seed 4, clients" in capsys.readouterr().out
    assert figures.main(["encoder_exchange", str(tmp_path / "ifca")]) == 2
    assert "of ifca do not have exactly one model" in capsys.readouterr().err
