"""Membership inference: candidates, reference federations, attacks on runs, and bad input."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optional
import pytest
import toys
from inputs import complaint

import fedjax_lab
from fedjax_lab import optim, simulator
from fedjax_lab.auditing import membership
from fedjax_lab.auditing.attacks.lira import lira
from fedjax_lab.auditing.likelihood import confidence
from fedjax_lab.auditing.target import make_target
from fedjax_lab.experiment.federation import make_rows, parts_of
from fedjax_lab.models import nets


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned random labels by heart."""
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    x, y = rng.normal(size=(240, 20)).astype(np.float32), rng.integers(0, 3, 240)
    np.savez(folder / "data.npz", x=x, y=y)
    config = toys.config(
        folder,
        data={"test": 0.5},
        partition={"name": "iid", "num_clients": 6},
        model={"width": 64},
        local={"lr": 0.3, "epochs": 10},
        run={"rounds": 4, "eval_every": 4},
    )
    return fedjax_lab.run(config, workdir=folder / "run", quiet=True)


@pytest.fixture(scope="module")
def target(run):
    return make_target(run)


def candidates_of(members, others):
    """Candidates with these numbers of members and nonmembers of each client."""
    sizes = np.add(members, others)
    places = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    (rows,) = make_rows([places])
    is_member = [np.arange(m + o) < m for m, o in zip(members, others, strict=True)]
    return membership.Candidates(rows, np.repeat([0, 1, 2], sizes), np.concatenate(is_member))


def test_candidates_are_the_training_and_the_test_examples_of_each_client():
    of = membership.candidates(jax.device_get(toys.FEDERATION))
    for client in range(toys.C):
        held = np.asarray(of.rows.list)[of.client == client]
        for rows, which in ((toys.FEDERATION.train, True), (toys.FEDERATION.test, False)):
            of_client = held[of.member[of.client == client] == which]
            assert len(of_client) == len(set(of_client)) <= int(toys.FEDERATION.train.count[client])
            assert set(of_client) <= set(np.asarray(rows[jnp.array([client])]).ravel())
    assert of.member.sum() == int(toys.FEDERATION.train.count.sum())
    without = toys.FEDERATION._replace(test=None)
    of = membership.candidates(jax.device_get(without))
    outside = np.asarray(of.rows.list)[~of.member]
    assert set(outside) <= set(np.asarray(without.global_test)) and len(set(outside)) > 100
    nothing = without._replace(global_test=None)
    assert "no examples that were not trained on" in complaint(membership.candidates, nothing)


def test_each_reference_holds_as_many_candidates_as_a_client_and_all_are_held_equally_often():
    of = candidates_of(members=(5, 3, 4), others=(5, 9, 0))
    included = membership.draw(of, 16, seed=0)
    for client, (n, size) in enumerate([(5, 10), (3, 12), (4, 4)]):
        here = included[:, of.client == client]
        np.testing.assert_array_equal(here.sum(1), n)
        assert set(here.sum(0)) <= {16 * n // size, -(-16 * n // size)}
    assert len({tuple(row) for row in included[:, of.client == 0].tolist()}) > 8


def test_clients_without_nonmembers_are_left_out():
    of = candidates_of(members=(5, 3, 4), others=(5, 9, 0))
    chosen = membership.comparable(of, -1)
    np.testing.assert_array_equal(chosen, of.client != 2)
    scores = np.where(chosen, of.member, np.nan)
    findings = membership.findings(scores, of, chosen)
    (row,) = findings.rows
    assert (row["members"], row["nonmembers"], row["auc"]) == (8, 14, 1)
    assert row["auc_per_client"] == [1, 1, None]
    assert findings.remarks == ["Left out: 1 clients without nonmembers."]
    assert "this client has no nonmembers" in complaint(membership.comparable, of, 2)
    none = candidates_of(members=(5, 3, 4), others=(0, 0, 0))
    assert "no client has test examples" in complaint(membership.comparable, none, -1)


def without_test_rows(target, client, count):
    """The target whose client has only so many test rows."""
    parts = parts_of(target.federation.test)
    parts[client] = parts[client][:count]
    (rows,) = make_rows([parts])
    return target._replace(federation=target.federation._replace(test=rows))


@pytest.mark.slow
def test_the_likelihood_ratio_attack_leaves_out_a_client_without_nonmembers(target):
    findings = lira(without_test_rows(target, 1, 0))
    (row,) = findings.rows
    assert row["auc_low"] > 0.6 and row["auc_per_client"][1] is None
    assert "Left out: 1 clients" in findings.remarks[1]


def test_too_few_references_are_refused_before_they_are_trained(target, monkeypatch):
    monkeypatch.setattr(membership, "references", None)
    message = complaint(lira, without_test_rows(target, 1, 1))
    assert "16 reference federations are too few" in message


@pytest.mark.slow
def test_clients_with_unlike_nets_have_members_but_no_inversion(tmp_path):
    config = toys.config(
        tmp_path,
        data={"test": 0.5},
        model={"kinds": (deep,)},
        method={"name": "fd"},
        run={"rounds": 1},
    )
    run = fedjax_lab.run(config, workdir=tmp_path / "run", quiet=True)
    for attack, settings in (("loss", {}), ("lira", {"references": 8})):
        row = fedjax_lab.audit(run, attack, view="client", **settings).rows[0]
        assert len(row["auc_per_client"]) == 6 and 0 < row["auc"] < 1
    assert "unlike models" in complaint(fedjax_lab.audit, run, "inversion")


def deep(num_classes):
    """A net with other layers than that of the config."""
    return nets.mlp(num_classes, width=6, depth=2)


def test_a_run_that_starts_from_another_has_no_known_beginning(run):
    config = run.config.copy_and_resolve_references()
    config.run.start_from = "another"
    experiment = run.experiment._replace(config=config)
    warm = replace(run, config=config, experiment=experiment)
    for attack in ("lira", "loss"):
        rounds = 0 if attack == "loss" else None
        assert "starts from another run" in complaint(fedjax_lab.audit, warm, attack, rounds=rounds)
    assert "starts from another run" in complaint(warm._untrained)


def test_a_run_that_has_diverged_is_not_attacked(run):
    states = [jax.tree.map(lambda a: a * np.nan, state) for state in run.states]
    message = complaint(make_target, replace(run, states=states))
    assert "after 4 rounds have values that are not finite" in message


@pytest.mark.slow
def test_references_at_once_are_federations_one_after_another(target):
    """With FedAvg, whose clients have the global model."""
    of = membership.candidates(target.federation)
    one, all_at_once = (
        membership.references(membership.make_simulator(target, of, view), of, [1, 3], 4, chunk)
        for view, chunk in (("global", 1), ("client", 4))
    )
    np.testing.assert_array_equal(one.included, all_at_once.included)
    np.testing.assert_allclose(one.phi, all_at_once.phi, rtol=1e-3, atol=1e-3)

    (rows,) = make_rows(
        [[np.asarray(of.rows.list)[one.included[2] & (of.client == c)] for c in range(6)]]
    )
    plan, task = target.plan, target.task
    alone = simulator(
        target.plain,
        task,
        jax.device_get(target.federation)._replace(train=rows),
        batch_size=plan.batch_size,
        epochs=plan.epochs,
        optimizer=optim.sgd(0.3),
    )
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), len(of.client)), 4)[2]
    state = alone.init(key)
    for t in range(3):
        state, _ = jax.jit(alone.round)(key, state, t, alone.data)
    pool, held = target.federation, jnp.asarray(of.rows.list)
    x = (pool.x[held].astype(jnp.float32) - pool.center) * pool.scale
    logits = task.apply(state.server, x).logits
    expected = confidence(task.objective, logits, pool.y[held])
    np.testing.assert_allclose(one.phi[2, 1], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_attacks_find_the_members_of_an_overfitted_run(run):
    by_loss = fedjax_lab.audit(run, "loss").rows[0]
    assert by_loss["auc_low"] > 0.6 and by_loss["members"] == 120
    found = {mode: fedjax_lab.audit(run, "lira", mode=mode) for mode in ("online", "offline")}
    for findings in found.values():
        row = findings.rows[0]
        assert 0.6 < row["auc_low"] < row["auc"] < row["auc_high"]
        assert len(row["auc_per_client"]) == 6
        assert "a common variance" in findings.remarks[0]
    own = fedjax_lab.audit(run, "loss", view="client", client=2).rows[0]
    assert own["auc"] == own["auc_per_client"][2] and own["members"] < by_loss["members"]
    pictures = fedjax_lab.auditing.audits.drawer("lira")(found["online"].arrays)
    assert pictures["roc"].axes[0].get_xscale() == "log"


@pytest.mark.slow
def test_an_audit_of_a_private_run_bounds_its_epsilon(tmp_path):
    optional.module("dp_accounting")
    private = {"name": "central", "noise": 1.0}
    config = toys.config(tmp_path, privacy=private, run={"rounds": 1, "cohort": 6})
    fedjax_lab.run(config, workdir=tmp_path / "run", quiet=True)
    findings = fedjax_lab.audit(tmp_path / "run", "epsilon", runs=400)
    for row in findings.rows:
        assert row["claim"] == "holds" and 0 <= row["lower_bound"] < row["stated_epsilon"]
    epsilon = fedjax_lab.load(tmp_path / "run").rows[-1]["epsilon"]
    assert findings.rows[0]["stated_epsilon"] == pytest.approx(epsilon)


def test_a_run_that_cannot_be_attacked_is_refused_in_one_line(run, target, tmp_path):
    def refused(attack="lira", of=run, **settings):
        return complaint(fedjax_lab.audit, of, attack, **settings)

    assert "no client 9; valid: 0 .. 5, -1: all" in refused("loss", client=9)
    assert "attack.references must be at least 4" in refused(references=3)
    assert "holds no run" in refused(of=tmp_path)
    assert "adds no noise" in refused("epsilon") or "no epsilon" in refused("epsilon")
    of = membership.candidates(target.federation)
    without = target.stage.method._replace(newcomer=None)
    lone = target._replace(stage=target.stage._replace(method=without))
    message = complaint(membership.make_simulator, lone, of, "global")
    assert "has no global model; use --attack.view=client" in message
