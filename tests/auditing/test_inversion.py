"""Gradient inversion: labels, likeness of images, and attacks on small runs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from scipy.ndimage import correlate1d
from shared_programs import shared_programs  # noqa: F401

import fedjax_lab
from fedjax_lab.auditing import findings, image_quality, labels, uploads
from fedjax_lab.auditing.attacks import inversion
from fedjax_lab.auditing.target import make_target, untrained
from fedjax_lab.commands import audit as command
from fedjax_lab.commands import figures, report

LINEAR = {"model": {"name": "mlp", "depth": 0, "width": 8}, "run": {"cohort": 3, "rounds": 1}}
QUICK = {"iterations": 2, "restarts": 1, "examples": 1}


def target(folder, **sections):
    return make_target(run_of(folder, **sections))


def run_of(folder, **sections):
    return untrained(toys.build(folder, **{**LINEAR, **sections}), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("toy")


# Labels.


def test_the_label_of_one_example_is_the_class_with_a_negative_gradient():
    logits, features = np.array([0.3, -1.0, 2.0, 0.1]), np.array([0.5, 0.0, 2.0])
    p = np.exp(logits) / np.exp(logits).sum()
    for label in range(4):
        gradient = p - np.eye(4)[label]
        assert list(gradient < 0) == list(np.eye(4)[label] > 0)
        assert labels.single_label(-0.1 * gradient) == label
        of_weights = np.outer(features, gradient)  # [D, K]
        sent = [jnp.zeros(3), -0.1 * jnp.asarray(of_weights)]
        update = labels.head_update(["params/a/bias", "params/head/kernel"], sent, "head")
        assert labels.single_label(np.asarray(update)) == label
        assert labels.single_label(0.1 * gradient, sign=-1.0) == label


def test_counts_of_labels_are_those_of_a_linear_update():
    rng, number = np.random.default_rng(0), 8
    p = rng.dirichlet(np.full(5, 20.0))
    each = np.eye(5) - p  # row c: the update of the bias if all examples are of class c
    true = np.array([3, 0, 4, 0, 1])
    assert list(labels.counts(true @ each / number, each, number)) == list(true)
    other = 0.9 * (true / number - p - 0.01 * rng.normal(size=5))  # other examples, and clipped
    assert list(labels.counts(other, each, number)) == list(true)
    assert list(labels.rounded(np.array([0.5, 0.25, 0.25]), 3)) == [1, 1, 1]
    assert labels.rounded(np.zeros(3), 4).sum() == 4


def test_a_client_that_does_not_send_the_head_hides_its_labels():
    message = complaint(labels.head_update, ["params/a/kernel"], [jnp.zeros((2, 3))], "head")
    assert "--attack.knows" in message


# Likeness.


def naive_ssim(a, b):
    """SSIM of gray images, from its definition with explicit windows."""
    x = np.arange(-5, 6)
    w = np.exp(-(x**2) / (2 * 1.5**2))
    w = np.outer(w, w) / w.sum() ** 2
    values = []
    for i in range(5, a.shape[0] - 5):
        for j in range(5, a.shape[1] - 5):
            p, q = (x[i - 5 : i + 6, j - 5 : j + 6] for x in (a, b))
            mp, mq = (w * p).sum(), (w * q).sum()
            vp, vq = (w * (p - mp) ** 2).sum(), (w * (q - mq) ** 2).sum()
            cov = (w * (p - mp) * (q - mq)).sum()
            top = (2 * mp * mq + 1e-4) * (2 * cov + 9e-4)
            values.append(top / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return np.mean(values)


def test_ssim_is_that_of_its_definition():
    rng = np.random.default_rng(0)
    a = correlate1d(rng.random((14, 16)), [0.25, 0.5, 0.25])
    b = np.clip(a + 0.2 * rng.normal(size=a.shape), 0, 1)
    np.testing.assert_allclose(image_quality.ssim(a, b), naive_ssim(a, b), rtol=1e-6)
    color = np.stack([a, b, a], -1)
    channels = (naive_ssim(a, b) + naive_ssim(b, a) + 1) / 3
    np.testing.assert_allclose(
        image_quality.ssim(color, np.stack([b, a, a], -1)), channels, rtol=1e-6
    )


def test_perfect_and_useless_attackers_are_at_the_ends_of_every_measure():
    true = np.random.default_rng(0).random((3, 12, 12, 1)).round()
    perfect = image_quality.compare(true, true)
    assert list(perfect.psnr) == [image_quality.MOST] * 3 and np.allclose(perfect.ssim, 1)
    useless = image_quality.compare(true, 1 - true)
    assert list(useless.psnr) == [0.0] * 3 and (useless.ssim < 0).all()
    flat = true.reshape(3, -1)
    assert list(image_quality.matched(flat, flat[[2, 0, 1]])) == [1, 2, 0]
    assert image_quality.compare(flat, flat).ssim is None


# Attacks.


def test_a_linear_model_reveals_its_only_example_exactly(folder):
    """W changes by -lr (p - e_y) x and b by -lr (p - e_y), so that their quotient is x."""
    of = target(folder)
    seen = uploads.observe(of, 1, ())
    named = dict(zip(seen.names, seen.sent, strict=True))
    W, b = named["params/head/kernel"][0], named["params/head/bias"][0]
    assert labels.single_label(np.asarray(b)) == int(seen.y[0, 0])
    federation = of.federation
    x = W[:, np.argmax(b)] / np.max(b)
    true = (seen.x[0, 0] - federation.center) * federation.scale
    np.testing.assert_allclose(x, true, atol=1e-4)


@pytest.mark.slow
def test_the_attack_finds_that_example(folder):
    found = fedjax_lab.audit(run_of(folder), "inversion", examples=1, lr=0.1, tv=0.0, clients=2)
    assert [row["labels"] for row in found.rows] == [100.0, 100.0]
    assert min(row["psnr"] for row in found.rows) > 30
    assert max(row["psnr_of_noise"] for row in found.rows) < 15


@pytest.mark.slow
def test_the_sender_repeats_what_was_observed(folder):
    """With everything known, the function that is inverted gives the observed arrays."""
    sections = {"local": {"batch_size": 2, "epochs": 2}, "method": {"name": "scaffold"}}
    for knows, is_same in ((("keys",), True), (("order",), True), ((), False)):
        of = target(folder, **sections)
        seen = uploads.observe(of, 4, knows)
        send = partial(uploads.make_sender(of, 4, knows), seen.server)
        clients, keys = uploads.guessed(of, seen, knows, jax.random.key(1))
        sent = jax.vmap(send)(clients, keys, seen.x, seen.y)
        close = [np.allclose(a, b, atol=1e-5) for a, b in zip(sent, seen.sent, strict=True)]
        assert all(close) == is_same


@pytest.mark.slow
def test_a_secure_sum_shows_one_update_of_the_cohort(folder):
    secure = {"aggregator": {"name": "secure_sum", "neighbors": 2}}
    plain, secure = (uploads.observe(target(folder, **each), 2, ()) for each in ({}, secure))
    assert secure.is_sum and not plain.is_sum and len(secure.x) == 3
    share = plain.clients.weight / plain.clients.weight.sum()
    for one, each in zip(secure.sent, plain.sent, strict=True):
        np.testing.assert_allclose(one[0], np.tensordot(share, each, 1), atol=1e-5)


@pytest.mark.slow
def test_a_compressed_upload_is_decoded(folder):
    plain = uploads.observe(target(folder), 2, ())
    coded = uploads.observe(target(folder, compression={"name": "top_k", "share": 0.25}), 2, ())
    for whole, some in zip(plain.sent, coded.sent, strict=True):
        np.testing.assert_allclose(some[some != 0], np.asarray(whole)[some != 0], atol=1e-6)
    assert 0.2 < np.mean(np.concatenate([a.ravel() for a in coded.sent]) != 0) < 0.3


# Bad input.

REFUSED = [
    ({"method": {"name": "fedala"}}, {}, "loop"),
    ({"method": {"name": "local"}}, {}, "upload nothing"),
    ({"method": {"name": "central"}}, {}, "all examples at once"),
    ({}, {"knows": ("statistics",)}, "no running statistics"),
    ({}, {"knows": ("private",)}, "no private state"),
    ({}, {"knows": ("label",)}, "labels"),
    ({}, {"itertions": 3}, "did you mean 'iterations'"),
    ({}, {"restarts": 0}, "attack.restarts must be above 0"),
    ({"downlink": {"name": "qsgd"}}, {}, "--config.downlink.name=none"),
]


@pytest.mark.parametrize("sections, settings, words", REFUSED)
def test_what_cannot_be_attacked_is_refused_in_one_line(folder, sections, settings, words):
    run = run_of(folder, **sections)
    assert words in complaint(fedjax_lab.audit, run, "inversion", **{**QUICK, **settings})


@pytest.mark.slow
def test_the_command_keeps_rows_and_pictures_in_the_folder_of_a_run(tmp_path, capsys):
    config = toys.write_config(tmp_path, **LINEAR)
    fedjax_lab.run(toys.config(tmp_path, **LINEAR), workdir=tmp_path / "run", quiet=True)
    words = [f"--attack.{key}={value}" for key, value in QUICK.items()]
    call = [str(tmp_path / "run"), "--attack=inversion", *words]
    for arguments in (call, call, [*call, "--rounds=0"]):
        assert command.main(arguments) == 0
    assert "psnr" in capsys.readouterr().out
    assert [row["round"] for row in findings.read(tmp_path / "run")] == [1, 0]
    assert set(findings.read_arrays(tmp_path / "run", "inversion")) == {"true", "made", "psnr"}
    assert report.main([str(tmp_path / "run")]) == 0
    assert "audit with inversion after 1 rounds" in capsys.readouterr().out
    for arguments, error in (
        ([call[0]], "no attack is given"),
        ([call[0], "--attack=inversio"], "did you mean 'inversion'?"),
        ([call[0], "--attack=inversion", "--attack.tv", "--rounds=0"], "--attack.tv needs a value"),
        ([config, "--attack=inversion"], "holds no run"),
        ([*call, "--rounds=7"], "no checkpoint after 7 rounds"),
        ([*call, "--attack.lr=high"], "attack.lr must be of type float"),
    ):
        assert command.main(arguments) == 2
        assert error in capsys.readouterr().err
    assert figures.main(["audit", call[0]]) == 2  # the examples are no images
    assert "no audit with pictures" in capsys.readouterr().err


def test_the_picture_has_the_true_images_above_the_others():
    made = np.random.default_rng(0).random((3, 8, 8, 1))
    arrays = {"true": made, "made": made, "psnr": np.full(3, 30.0)}
    (figure,) = inversion.pictures(arrays).values()
    assert len(figure.axes) == 6
