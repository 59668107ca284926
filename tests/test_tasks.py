"""What models learn besides one class per example: losses and metrics against NumPy's formulas and
scikit-learn's, which methods learn each task, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
import unfit_methods
from inputs import complaint
from sklearn import metrics as reference
from slow_cases import exhaustive_but, slow_but

import fedjax_lab
from fedjax_lab import losses
from fedjax_lab.data import from_arrays
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.models import nets, transformer, unet
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import evaluate, metrics
from fedjax_lab.tasks import Labels
from fedjax_lab.tasks.binary import binary
from fedjax_lab.tasks.classification import classification
from fedjax_lab.tasks.multilabel import multilabel
from fedjax_lab.tasks.regression import regression
from fedjax_lab.tasks.segmentation import segmentation
from fedjax_lab.tasks.tokens import tokens
from fedjax_lab.testing.toy import needs_adapters
from fedjax_lab.types import Batch

RNG = np.random.default_rng(0)
N, K = 23, 4
INDICATORS = RNG.integers(0, 2, (N, K)).astype(np.int32)
PIXELS = RNG.integers(-1, 3, (N, 5, 6)).astype(np.int32)
WORDS = RNG.integers(-1, 7, (N, 8)).astype(np.int32)
NUMBERS = (1000 + 30 * RNG.normal(size=(N, 2))).astype(np.float32)
NAMES = tuple("abcdefg")
SIZES = np.int32([0, 1, 1, 2, 3, 1, 4])  # bytes of NAMES as tokens
OBJECTIVES = {
    "classification": classification(Labels(np.arange(N, dtype=np.int32) % K, NAMES[:K])),
    "binary": binary(Labels(INDICATORS[:, 0], NAMES[:2])),
    "multilabel": multilabel(Labels(INDICATORS, NAMES[:K])),
    "regression": regression(Labels(NUMBERS[:, 0], ())),
    "several numbers": regression(Labels(NUMBERS, ()), loss="huber", delta=0.5),
    "tokens": tokens(Labels(WORDS, NAMES, class_bytes=SIZES)),
    "segmentation": segmentation(Labels(PIXELS, NAMES[:3])),
}
LABELS = {
    "classification": np.arange(N, dtype=np.int32) % K,
    "binary": INDICATORS[:, 0],
    "multilabel": INDICATORS,
    "regression": NUMBERS[:, 0],
    "several numbers": NUMBERS,
    "tokens": WORDS,
    "segmentation": PIXELS,
}


def outputs(name):
    return RNG.normal(size=(N, *OBJECTIVES[name].outputs)).astype(np.float32)


def measured(name, logits, y, optional_ones=()):
    """The loss and the metrics of a task for these outputs, as an evaluation computes them."""
    objective = OBJECTIVES[name]
    named = metrics.make([metrics.BUILT_IN[each] for each in optional_ones], objective)
    domain = jnp.ones((len(y), 1))
    total = domain if objective.num_labels is None else objective.num_labels(y)[:, None]
    got = {}
    for metric in (metrics.loss_of(objective), *named):
        if isinstance(metric, metrics.Whole):
            got[metric.name] = float(metric.value(logits, y, jnp.ones(len(y))))
            continue
        sums = metrics.by_domain(metric, jnp.asarray(logits), jnp.asarray(y), domain)
        sums = jax.tree.map(lambda a: np.asarray(a, float), sums)
        got[metric.name] = float(metric.value(sums, np.asarray(total, float).sum(0))[0])
    return got


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def naive_loss(name, logits, y):
    if name == "classification":
        return -log_softmax(logits)[np.arange(N), y].mean()
    if name in ("binary", "multilabel"):
        p = 1 / (1 + np.exp(-logits.reshape(y.shape)))
        return -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    if name in ("tokens", "segmentation"):
        counted = y >= 0
        chosen = np.take_along_axis(log_softmax(logits), np.maximum(y, 0)[..., None], -1)[..., 0]
        return -chosen[counted].mean()
    z = (y - y.mean(0)) / y.std(0)
    error = logits - z.reshape(logits.shape)
    if name == "regression":
        return (error**2).mean()
    small = np.abs(error) <= 0.5
    return np.where(small, error**2 / 2, 0.5 * (np.abs(error) - 0.25)).mean()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_against_numpy(name):
    """The training loss of a batch, without its padding, equals the loss of an evaluation."""
    logits, y = outputs(name), LABELS[name]
    expected = naive_loss(name, logits, y)
    assert measured(name, logits, y)["loss"] == pytest.approx(expected, rel=2e-5)
    task = toys.TASK._replace(objective=OBJECTIVES[name])
    padded = np.concatenate([logits, outputs(name)[:3]]), np.concatenate([y, y[:3]])
    batch = Batch(None, jnp.asarray(padded[1]), jnp.asarray(np.arange(N + 3) < N, jnp.float32))
    assert task.loss(jnp.asarray(padded[0]), batch) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("loss_mean", slow_but(["example"], ["token", "example"]))
def test_losses_in_blocks_are_those_of_all_logits(loss_mean):
    """Three blocks of 3 tokens for rows of 8; also the gradients of the features and the head."""
    made = tokens(Labels(WORDS, NAMES), loss_mean=loss_mean, block=3)
    z, kernel = RNG.normal(size=(N, 8, 5)), RNG.normal(size=(5, 7))
    given = jnp.asarray(z, jnp.float32), jnp.asarray(kernel, jnp.float32)
    weight = jnp.arange(1.0, N + 1)

    def whole(z, kernel):
        return weight @ made.losses(z @ kernel, WORDS)

    def in_blocks(z, kernel):
        return weight @ made.losses_at(lambda part: part @ kernel, z, WORDS)

    expected, found = (jax.value_and_grad(f, (0, 1))(*given) for f in (whole, in_blocks))
    toys.close(found, expected)


@pytest.mark.slow
def test_a_training_in_blocks_never_has_all_logits():
    net = transformer.causal_transformer(7, width=4, depth=1, heads=1, vocabulary=7)
    batch = Batch(jnp.asarray(np.abs(WORDS)), jnp.asarray(WORDS), 1.0 * (jnp.arange(N) < N - 3))

    def found(block):
        task = make_task(net, (8,), tokens(Labels(WORDS, NAMES), block=block))
        weights = task.init(jax.random.key(0))
        gradient = jax.value_and_grad(losses.risk(task), has_aux=True)

        def value(params):
            (of_batch, _), grads = gradient(weights._replace(params=params), batch)
            return of_batch, grads.params

        program = jax.jit(value).lower(weights.params).compile()
        text = program.as_text()
        return f"[{N},8,7]" in text or f"[{N * 8},7]" in text, program(weights.params)

    (has_all, whole), (has_all_in_blocks, in_blocks) = found(0), found(3)
    assert has_all and not has_all_in_blocks
    toys.close(in_blocks, whole)


@pytest.mark.slow
def test_metrics_against_scikit_learn():
    y, o = INDICATORS, outputs("multilabel")
    got = measured("multilabel", o, y, ("auroc", "map"))
    for average in ("micro", "macro"):
        expected = 100 * reference.f1_score(y, o > 0, average=average)
        assert got[f"{average}_f1"] == pytest.approx(expected, rel=1e-5)
    assert got["auroc"] == pytest.approx(100 * reference.roc_auc_score(y, o), rel=1e-5)
    assert got["map"] == pytest.approx(100 * reference.average_precision_score(y, o), rel=1e-5)
    y, o = INDICATORS[:, 0], np.round(outputs("binary"), 1)  # with ties
    got = measured("binary", o, y, ("auroc", "map"))
    assert got["f1"] == pytest.approx(100 * reference.f1_score(y, o[:, 0] > 0), rel=1e-5)
    assert got["auroc"] == pytest.approx(100 * reference.roc_auc_score(y, o[:, 0]), rel=1e-5)
    expected = 100 * reference.average_precision_score(y, o[:, 0])
    assert got["map"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["regression", "several numbers"])
def test_metrics_of_numbers_have_their_unit(name):
    y, o = LABELS[name], outputs(name)
    got, predicted = measured(name, o, y), OBJECTIVES[name].predict(o)
    np.testing.assert_allclose(predicted, (o * y.std(0) + y.mean(0)).reshape(y.shape), rtol=1e-5)
    expected = {
        "rmse": reference.root_mean_squared_error(y, predicted),
        "mae": reference.mean_absolute_error(y, predicted),
        "r2": reference.r2_score(y, predicted),
    }
    for metric, value in expected.items():
        assert got[metric] == pytest.approx(value, rel=1e-4), metric
    raw = regression(Labels(y, ()), standardize=False)
    np.testing.assert_array_equal(raw.predict(o), o.reshape(y.shape))
    (rmse, *_) = raw.metrics
    sums = jax.tree.map(lambda a: np.asarray(a).sum(0), rmse.statistics(o, y, None))
    expected = reference.root_mean_squared_error(y, o.reshape(y.shape))
    assert rmse.value(sums, np.float64(N)) == pytest.approx(expected, rel=1e-4)


def test_r2_is_not_defined_for_one_example_or_equal_labels():
    r2 = OBJECTIVES["regression"].metrics[2]
    y = np.float32([990, 990, 990, 1010, 985, 1030])
    sums = r2.statistics(outputs("regression")[:6], jnp.asarray(y), None)
    for rows in (slice(1), slice(3)):
        summed = jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows].sum(0)[None], sums)
        assert np.isnan(r2.value(summed, np.float64([len(y[rows])])))
    summed = jax.tree.map(lambda a: np.asarray(a).sum(0)[None], sums)
    assert np.isfinite(r2.value(summed, np.float64([6.0])))


def test_metrics_of_positions_against_numpy():
    y, o = PIXELS, outputs("segmentation")
    got, p, counted = measured("segmentation", o, y), o.argmax(-1), y >= 0
    flat = y[counted], p[counted]
    expected = 100 * reference.jaccard_score(*flat, average="macro")
    assert got["miou"] == pytest.approx(expected, rel=1e-5)
    assert got["dice"] == pytest.approx(100 * reference.f1_score(*flat, average="macro"), rel=1e-5)
    objective = OBJECTIVES["segmentation"]
    right = objective.correct(o, y).sum() / objective.num_labels(y).sum()
    assert right == pytest.approx(np.mean(flat[0] == flat[1]))
    got = measured("tokens", o := outputs("tokens"), WORDS)
    assert got["perplexity"] == pytest.approx(np.exp(naive_loss("tokens", o, WORDS)), rel=1e-4)


def test_bits_per_byte_count_the_bytes_of_the_tokens():
    """Special tokens have no bytes, but their losses count."""
    got, counted = measured("tokens", o := outputs("tokens"), WORDS), WORDS[WORDS >= 0]
    total = len(counted) * naive_loss("tokens", o, WORDS)
    expected = total / (np.log(2) * SIZES[counted].sum())
    assert got["bits_per_byte"] == pytest.approx(expected, rel=1e-4)
    (perplexity,) = tokens(Labels(WORDS, NAMES)).metrics  # without a tokenizer
    assert perplexity.name == "perplexity"


def test_a_loss_by_example_is_the_mean_of_the_means_of_examples():
    y, o = WORDS.copy(), outputs("tokens")
    y[0] = -1  # does not count
    objective = tokens(Labels(y, NAMES), loss_mean="example")
    expected = np.mean([naive_loss("tokens", o[i : i + 1], y[i : i + 1]) for i in range(1, N)])
    task = toys.TASK._replace(objective=objective)
    batch = Batch(None, jnp.asarray(y), jnp.ones(N))
    assert task.loss(jnp.asarray(o), batch) == pytest.approx(expected, rel=2e-5)
    right = objective.correct(o, y).sum() / objective.num_labels(y).sum()
    each = [np.mean((o.argmax(-1) == y)[i][y[i] >= 0]) for i in range(1, N)]
    assert right == pytest.approx(np.mean(each), rel=1e-5)
    (perplexity,) = objective.metrics
    sums = jax.tree.map(lambda a: np.asarray(a).sum(0), perplexity.statistics(o, y, None))
    of_tokens = np.exp(naive_loss("tokens", o, y))
    assert perplexity.value(sums, np.float64(N)) == pytest.approx(of_tokens, rel=1e-4)
    said = complaint(tokens, Labels(y, NAMES), loss_mean="tokens")
    assert "config.task.loss_mean cannot be 'tokens'; did you mean 'token'?" in said


def write(folder, name):
    """Writes twelve clients' examples of a task, and returns the sections of a config for them."""
    rng, objective = np.random.default_rng(1), OBJECTIVES[name]
    count = 48
    x = {
        "tokens": rng.integers(1, 7, (count, 8)).astype(np.int16),
        "segmentation": rng.random((count, 8, 8, 1), np.float32),
    }.get(name, rng.normal(size=(count, 6)).astype(np.float32))
    if name == "tokens":
        y = np.concatenate([x[:, 1:], np.full((count, 1), -1)], 1).astype(np.int32)
    elif name == "segmentation":
        y = (x[..., 0] > 0.5).astype(np.int32)
    elif name == "regression":
        y = (500 + 30 * x[:, 0]).astype(np.float32)
    elif name == "multilabel":
        y = (x[:, :3] > 0).astype(np.int32)
    else:
        y = (x[:, 0] > 0).astype(np.int32)
    np.savez(path := folder / f"{name}.npz", x=x, y=y)
    model = {"tokens": "causal_transformer", "segmentation": "unet"}.get(name, "mlp")
    sizes = {"tokens": {"width": 8, "heads": 2}, "segmentation": {"width": 4, "depth": 1}}
    assert objective.name == name
    return {
        "data": {"name": "arrays", "path": str(path)},
        "task": {"name": name},
        "model": {"name": model, **sizes.get(name, {"width": 8})},
        "partition": {"name": "iid", "num_clients": 4, "validation": 0.25},
        "local": {"batch_size": 4},
        "run": {"rounds": 3, "eval_every": 3},
    }


OF_CLASSES = re.findall(r"`(\w+)`", unfit_methods.listed("tasks.md"))
TASKS = "binary", "multilabel", "regression", "tokens", "segmentation"
PAIRS = [(task, method) for task in TASKS for method in sorted(registry.METHODS)]
IN_CI = {
    ("regression", "fedavg"), ("multilabel", "ditto"), ("binary", "ifca"),
    ("segmentation", "fedbn"), ("tokens", "fedproto"),
}  # fmt: skip


@pytest.mark.parametrize(("task", "method"), exhaustive_but(IN_CI, PAIRS))
def test_every_method_learns_every_task_or_says_what_it_needs(tmp_path, task, method):
    config = resolve({**write(tmp_path, task), "method": {"name": method}})
    if needs_adapters(method):
        assert "--config.adapter.name=lora" in complaint(experiment.build, config, [0])
        return
    if method == "fedap":
        assert "BatchNorm" in complaint(experiment.build, config, [0])
        return
    if method in OF_CLASSES:
        error = complaint(experiment.build, config, [0])
        assert f"method {method}" in error and "one class per example" in error
        return
    engine = Engine(experiment.build(config, [0]).simulation)
    engine.compile()
    first = engine.evaluate()[0]
    while engine.played < 3:
        engine.play(3 - engine.played)
    objective = engine.simulation.plan.objective
    before, after = (
        evaluate.summarize(scores, ("",), objective.metrics)["loss"]["mean"]
        for scores in (first, engine.evaluate()[0])
    )
    assert np.isfinite(after) and after != before


@pytest.mark.exhaustive
def test_labels_of_tokens_are_read_as_the_examples_are(tmp_path):
    """Streamed and divided examples give the numbers of examples on every device."""
    sections = {**write(tmp_path, "tokens"), "run": {"rounds": 2, "eval_every": 2, "cohort": 2}}
    rows = {
        data: fedjax_lab.run({**sections, "engine": {"data": data}}, quiet=True).metrics[-1]
        for data in ("replicated", "stream", "sharded")
    }
    expected = rows.pop("replicated")
    for row in rows.values():
        for measure in ("loss", "accuracy", "perplexity"):
            each = row[measure]["per_client"], expected[measure]["per_client"]
            np.testing.assert_allclose(*each, rtol=1e-5)
        assert row["global_loss"] == pytest.approx(expected["global_loss"], rel=1e-5)


@pytest.mark.slow
def test_seeds_of_a_task_without_classes_train_together(tmp_path):
    """Whole numbers are not classes, and every seed has the same stand-in for their counts."""
    sections = write(tmp_path, "regression")
    x = np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32)
    np.savez(tmp_path / "whole.npz", x=x, y=250_000 + np.arange(48) * 1000)
    sections["data"]["path"] = str(tmp_path / "whole.npz")
    sections["run"] = {"rounds": 1, "eval_every": 1}
    result = fedjax_lab.run(sections, seeds=[0, 1], quiet=True)
    assert [row["seed"] for row in result.metrics] == [0, 1]
    assert result.experiment.dataset.classes == ()
    assert 1000 < result.metrics[0]["rmse"]["mean"] < 40_000
    y = np.asarray(result.experiment.dataset.y)
    assert result.score((x, y))["mae"]["mean"] != result.score((x, y + 0.9))["mae"]["mean"]
    assert "labels must be numbers [48]" in complaint(result.score, (x, y[:, None]))


def test_labels_that_a_task_cannot_learn_are_refused_with_the_task_that_can():
    make = {name: registry.look_up("task", name) for name in registry.NAMED["task"]}
    for name, y, expected in (
        ("classification", NUMBERS[:, 0], "float32[]: set --config.task.name=regression"),
        ("classification", INDICATORS, "multilabel for columns of 0 and 1"),
        ("classification", np.arange(3) - 1, "needs labels 0 .. K - 1, not -1 .. 1"),
        ("classification", PIXELS, "segmentation for a class of each pixel"),
        ("binary", np.arange(5), "one of these data is 2; set --config.task.name=classification"),
        ("regression", PIXELS, "segmentation"),
        ("segmentation", PIXELS[..., None], "remove the last axis of masks"),
        ("tokens", WORDS[:, 0], "classification for classes, binary for 0 and 1, regression for"),
        ("classification", np.arange(3.0), "convert classes to whole numbers, y.astype(int)"),
        ("classification", np.arange(3) - 1, "leave out examples without a label, such as -1"),
        ("multilabel", INDICATORS - 1, "one of these data is -1; replace the others"),
        ("binary", INDICATORS[:, 0] - 1, "replace the others, such as -1 for unknown ones"),
        ("tokens", np.where(WORDS < 0, -100, WORDS), "set --config.data.no_label=-100"),
        ("segmentation", PIXELS + 3, "a position has the label 5; labels are 0 .. 2, or -1"),
        ("segmentation", np.where(PIXELS < 0, 255, PIXELS), "set --config.data.no_label=255"),
        ("regression", np.array([1.0, np.nan]), "finite labels"),
    ):
        classes = NAMES[:3] if y.min() != -1 or y.ndim > 1 else ()
        assert expected in complaint(make[name], Labels(y, classes)), (name, expected)
    others = Labels(INDICATORS[:, 0], NAMES[:2], others=np.array([2], np.int32))
    assert "one of these data is 2" in complaint(make["binary"], others)
    assert "loss" in complaint(regression, Labels(NUMBERS, ()), loss="mes")


def test_marks_of_no_label_do_not_count(tmp_path):
    """255 in masks and -100 in tokens, which are -1 in the package."""
    for name, mark in (("segmentation", 255), ("tokens", -100)):
        sections = write(tmp_path, name)
        given = dict(np.load(sections["data"]["path"]))
        hidden = np.arange(given["y"].size).reshape(given["y"].shape) % 3 == 0
        expected, y = (np.where(hidden, each, given["y"]) for each in (-1, mark))
        np.savez(tmp_path / "marked.npz", **{**given, "y": y})
        section = {**sections["data"], "path": str(tmp_path / "marked.npz")}
        resolved = resolve({**sections, "data": {**section, "no_label": (mark,)}})
        made = experiment.load_data(resolved.data)
        np.testing.assert_array_equal(made.y, expected)
        assert len(made.classes) == expected.max() + 1
        unmarked = resolve({**sections, "data": section})
        message = complaint(experiment.build, unmarked, [0])
        assert f"set --config.data.no_label={mark}" in message
    of_one = {**write(tmp_path, "binary")["data"], "no_label": (255,)}
    message = complaint(experiment.load_data, resolve({"data": of_one}).data)
    assert "config.data.no_label=(255,) takes whole labels of tokens or pixels" in message


def test_a_regression_of_names_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    y, shared = np.arange(40) % 2, {"partition": {"name": "iid", "num_clients": 2}}

    def build(task, **given):
        data = from_arrays(x, y, **given)
        return experiment.build(resolve({"data": data, "task": {"name": task}, **shared}), [0])

    message = complaint(build, "regression", classes=["no", "yes"])
    assert "names of 2 classes: that of example 1 is 'no'" in message
    assert "config.task.name=classification" in message
    assert build("binary", classes=["no", "yes"]).dataset.classes == ("no", "yes")
    assert build("regression").dataset.y.dtype == np.float32


def test_labels_of_0_and_1_may_be_real_numbers():
    x = np.random.default_rng(0).normal(size=(40, 2))
    for task, y in (("binary", np.arange(40) % 2.0), ("multilabel", np.ones((40, 3)))):
        config = {"data": from_arrays(x, y), "task": {"name": task}}
        config["partition"] = {"name": "iid", "num_clients": 2}
        made = experiment.build(resolve(config), [0])
        assert made.dataset.y.dtype == np.int32
        registry.look_up("task", task)(Labels(np.float32(y), ()))


def test_unused_classes_are_named():
    y = np.arange(40) % 2 * 3 + 1
    config = {"data": from_arrays(np.random.default_rng(0).normal(size=(40, 2)), y)}
    config["partition"] = {"name": "iid", "num_clients": 2}
    made = experiment.build(resolve(config), [0])
    (line,) = (line for line in made.remarks if "classes occur" in line)
    assert "3 of 5 classes occur in no example: 0, 2, 3; the model has an output" in line


def test_parts_that_do_not_fit_a_task_are_refused(tmp_path):
    base = write(tmp_path, "regression")
    for sections, expected in (
        ({"partition": {"name": "dirichlet"}}, "config.partition.name=dirichlet needs one class"),
        ({"run": {"metrics": ("top5",)}}, "the task regression has no metric 'top5'"),
        ({"run": {"metrics": ("auroc",)}}, "it measures loss, rmse, mae, r2 by itself"),
        ({"attack": {"name": "label_flip"}}, "method fedavg with attack label_flip: its formulas"),
        ({"task": {"name": "classification"}}, "set --config.task.name=regression"),
        ({"task": {"name": "regresion"}}, "no task 'regresion'; did you mean 'regression'"),
    ):
        config = {
            key: {**base.get(key, {}), **sections.get(key, {})} for key in {**base, **sections}
        }
        assert expected in complaint(lambda config=config: experiment.build(resolve(config), [0]))


def test_images_are_not_moved_without_the_labels_of_their_pixels(tmp_path):
    base = write(tmp_path, "segmentation")
    skewed = base | {"partition": base["partition"] | {"feature_skew": "rotation"}}
    assert "feature_skew=rotation moves the pixels" in complaint(
        lambda: experiment.build(resolve(skewed), [0])
    )


def own(labels, *, power: float = 4.0):
    """A task of a user: the mean of |o - y|^power, without an accuracy or metrics of its own."""
    made = regression(labels, standardize=False)
    return made._replace(
        name="own",
        losses=lambda o, y: jnp.mean(jnp.abs(o - y[:, None]) ** power, -1),
        metrics=(),
    )


def test_a_task_of_a_user_has_its_own_loss(tmp_path):
    sections = {**write(tmp_path, "regression"), "task": {"name": own, "power": 2.0}}
    task = experiment.build(resolve(sections), [0]).task
    o, y = jnp.array([[1.0], [2.0]]), jnp.array([3.0, 2.0])
    assert task.loss(o, Batch(None, y, jnp.ones(2))) == pytest.approx(2.0)


def test_a_model_must_have_the_outputs_of_its_task():
    wrong = complaint(make_task, nets.mlp(3), (8,), OBJECTIVES["tokens"])
    assert "float32[2, 8, 7] for 2 examples of task tokens" in wrong
    objective = OBJECTIVES["segmentation"]._replace(outputs=(6, 6, 3))
    made = make_task(unet.unet(3, width=4, depth=1), (6, 6, 1), objective)
    assert made.dense == ("head",)
    assert "multiples of 4" in complaint(make_task, unet.unet(3, depth=2), (6, 6, 1), objective)


def test_a_causal_transformer_does_not_see_later_words():
    net = transformer.causal_transformer(7, width=8, heads=2, vocabulary=7)
    objective = OBJECTIVES["tokens"]
    task = make_task(net, (8,), objective)
    weights = toys.random_weights(jax.eval_shape(task.init, jax.random.key(0)))
    x = jnp.array([[1, 2, 3, 4, 5, 6, 1, 2.0]])
    changed = x.at[0, 5:].set(3)
    logits = [task.apply(weights, each).logits for each in (x, changed)]
    np.testing.assert_allclose(logits[0][0, :5], logits[1][0, :5], rtol=1e-5, atol=1e-6)
    assert np.abs(logits[0][0, 5:] - logits[1][0, 5:]).max() > 1e-3
