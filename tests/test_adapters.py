"""Models of which a part is frozen: LoRA by qwix, and some layers alone."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optional
import pytest
import toys
from inputs import complaint
from slow_cases import exhaustive_but, slow_but

import fedjax_lab
from fedjax_lab import losses, tree
from fedjax_lab.engine import fsdp
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.input import BASE
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.models import adapters, nets, peft_files
from fedjax_lab.models.task import make_task
from fedjax_lab.models.transformer import transformer
from fedjax_lab.running import runner
from fedjax_lab.types import Batch

KEY = jax.random.key(3)
LORA = {"name": "lora", "targets": "Dense_0", "rank": 3}
FROZEN = {"name": "frozen"}
optional.module("qwix")


def config(adapter=LORA, **sections):
    base = {
        "data": {"name": "synthetic", "num_users": 7, "seed": 1},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "mlp"},
        "adapter": adapter,
        "local": {"lr": 0.02, "batch_size": 16},
        "run": {"rounds": 4, "eval_every": 2, "cohort": 5},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values}
    return base


def run(adapter=LORA, workdir=None, seeds=None, resume=False, **sections):
    return fedjax_lab.run(
        config(adapter, **sections), workdir=workdir, seeds=seeds, resume=resume, quiet=True
    )


def numbers(result):
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in result.rows]


def model_of(net, shape, objective=10, **settings):
    adapter = adapters.lora(losses.as_objective(objective), **settings)

    def make(net, pretrained):
        return make_task(net, shape, objective, pretrained_file=pretrained)

    return adapters.apply(adapter, net, "", make)


@pytest.mark.slow
def test_with_b_of_zero_the_adapted_model_is_the_base_and_otherwise_l1():
    model = model_of(nets.mlp(10, width=7), (5,), targets="Dense_0", rank=2, alpha=3.0)
    base = model.load()
    task, x = model.bind(base), jax.random.normal(KEY, (4, 5))
    w = task.init(KEY)
    factors = w.params["Dense_0"]
    W, b = base.params["Dense_0"]["kernel"], base.params["Dense_0"]["bias"]
    head = w.params["head"]

    def logits(hidden):
        return np.maximum(hidden, 0) @ head["kernel"] + head["bias"]

    whole = make_task(nets.mlp(10, width=7), (5,), 10)
    plain = tree.join(base, w)
    plain = plain._replace(params={"Dense_0": base.params["Dense_0"], "head": head})
    plain.params["Dense_0"] = {"kernel": W, "bias": b}
    np.testing.assert_array_equal(task.apply(w, x).logits, whole.apply(plain, x).logits)
    bound = 1 / np.sqrt(5)  # of A, as in PEFT
    A = factors["kernel_lora_a"]
    assert np.abs(A).max() <= bound and np.abs(A).max() > bound / 2
    B = jax.random.normal(KEY, factors["kernel_lora_b"].shape)
    factors["kernel_lora_b"] = B
    expected = logits(x @ W + b + 3.0 / 2 * x @ A @ B)  # L1
    np.testing.assert_allclose(task.apply(w, x).logits, expected, rtol=1e-4, atol=1e-5)
    changed = task.adapters.changed({"Dense_0/kernel": 3.0 / 2 * A @ B})
    factors["kernel_lora_b"] = jnp.zeros_like(B)
    np.testing.assert_allclose(changed.apply(w, x).logits, expected, rtol=1e-4, atol=1e-5)


def test_without_a_base_nothing_can_be_computed():
    model = model_of(nets.mlp(10, width=7), (5,), targets="Dense_0", rank=2)
    task = model.unbound
    assert np.isnan(task.apply(task.init(KEY), jnp.ones((2, 5))).logits).all()


@pytest.mark.parametrize("bits", exhaustive_but([8], [16, 8, 4]))
def test_a_base_of_fewer_bits_gives_nearly_the_same_logits(bits):
    net, x = transformer(10, width=64, depth=2, vocabulary=20), jnp.arange(24.0).reshape(2, 12) % 19
    models = {each: model_of(net, (12,), targets="qkv", bits=each) for each in (32, bits)}
    outputs = {each: model.bind(model.load()) for each, model in models.items()}
    size = tree.num_bytes(models[bits].base)
    w = outputs[32].init(KEY)
    exact, coarse = (outputs[each].apply(w, x).logits for each in (32, bits))
    error = np.abs(exact - coarse).max() / np.abs(exact).max()
    assert 0 < error < {16: 0.02, 8: 0.05, 4: 0.3}[bits]
    kernels = 4 * 2 * (3 + 1 + 4 + 4) * 64 * 64
    assert size < tree.num_bytes(models[32].base) - (1 - bits / 32 - 0.07) * kernels
    if bits < 16:
        with pytest.raises(BadInput, match="bits=.*quantized"):
            outputs[bits].adapters.changed({})


@pytest.mark.slow
def test_no_array_of_the_program_has_clients_and_the_base():
    simulation = experiment.build(resolve(config(run={"cohort": 6}))).simulation
    engine = Engine(simulation)
    (programs,) = engine.lower().values()
    text = programs.play.as_text()
    for leaf in jax.tree.leaves(simulation.base.base):
        shape = "x".join(map(str, leaf.shape))
        assert leaf.ndim < 2 or re.search(rf"tensor<{shape}xf32>", text)
        clients = rf"tensor<(6|3)x{shape}xf32>"  # all, or those of a device
        assert leaf.ndim < 2 or not re.search(clients, text)
    assert tree.num_bytes(engine.lanes[0].settings[BASE]) == tree.num_bytes(simulation.base.base)


@pytest.mark.slow
def test_a_run_with_adapters_resumes_loads_predicts_and_counts_bytes(tmp_path):
    whole = run(workdir=tmp_path / "whole", seeds=[0, 1])
    adapters_only = 4 * (60 * 3 + 3 * 64 + 64 * 10 + 10)
    base = 4 * (60 * 64 + 64)
    last = whole.rows[-1]
    assert last["bytes_up"] == 4 * 5 * adapters_only
    assert last["bytes_down"] == 4 * 5 * adapters_only + 7 * base
    half = run(workdir=tmp_path / "half", seeds=[0, 1], run={"rounds": 2})
    assert numbers(half) == numbers(whole)[:2]
    run(workdir=tmp_path / "half", seeds=[0, 1], resume=True, run={"rounds": 4})
    loaded = fedjax_lab.load(tmp_path / "half")
    assert numbers(loaded) == numbers(whole)
    x = loaded.experiment.dataset.x[:5]
    np.testing.assert_array_equal(loaded.predict(x, seed=1), whole.predict(x, seed=1))
    data = loaded.experiment.dataset
    rows = loaded.experiment.simulation.seeds[0].federation.global_test
    scores = loaded.score((data.x[rows], data.y[rows]))
    assert scores["global"] == pytest.approx(whole.rows[-2]["global"], abs=1e-4)
    size = sum(
        f.stat().st_size for f in (tmp_path / "whole" / "checkpoints").rglob("*") if f.is_file()
    )
    assert size < 4 * 10**5
    one_by_one = run(seeds=[0, 1], engine={"seeds": "sequential", "strategy": "sequential"})
    for ours, theirs in zip(one_by_one.rows, whole.rows, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)


@pytest.mark.slow
def test_clients_beyond_the_devices_use_the_same_base():
    method = {"name": "ditto"}
    plain = run(method=method)
    hosted = run(method=method, engine={"state": "host", "data": "stream"})
    assert hosted.rows[-1]["train_loss"] == pytest.approx(plain.rows[-1]["train_loss"], rel=1e-5)


@pytest.mark.slow
def test_training_every_layer_is_a_run_without_adapters():
    """FedAvg on the weights, and on those of a model whose frozen part is empty."""
    every = run({"name": "frozen", "layers": "Dense_0,head"})
    assert numbers(every) == numbers(run({"name": "none"}))


@pytest.mark.slow
def test_only_the_head_is_trained_and_a_frozen_batch_norm_keeps_its_statistics():
    net = nets.mlp(10, width=6, norm=True)

    def make(net, pretrained):
        return make_task(net, (5,), 10, pretrained_file=pretrained)

    model = adapters.apply(adapters.frozen(losses.as_objective(10)), net, "", make)
    base = model.load()
    task, x = model.bind(base), jax.random.normal(KEY, (8, 5)) + 2
    w = task.init(KEY)
    assert tree.names(w) == ["params/head/bias", "params/head/kernel"]
    assert task.layers == task.dense == ("head",) and task.batch_norms == ()
    batch = Batch(x, jnp.arange(8), jnp.ones(8))
    value, out = losses.risk(task)(w, batch, KEY)
    np.testing.assert_array_equal(out.logits, task.apply(w, x).logits)
    assert not jax.tree.leaves(out.stats) and np.isfinite(value)
    whole = make(net, "")
    full = tree.join(w, base)
    np.testing.assert_array_equal(out.logits, whole.apply(full, x).logits)
    assert not np.allclose(out.logits, whole.apply(full, x, KEY, batch.mask).logits)


@pytest.mark.parametrize(
    "adapter, culprit, message",
    [
        ({**FROZEN, "layers": "dense_0"}, "adapter.layers", "Dense_0"),
        ({**FROZEN, "layers": ""}, "adapter.layers", "empty"),
        ({**LORA, "targets": "quer"}, "adapter.targets", "Dense_0"),
        ({**LORA, "rank": 0}, "adapter.rank", "0"),
        ({**LORA, "bits": 5}, "adapter.bits", "32, 16, 8, 4"),
        ({**LORA, "dropout": 1.0}, "adapter.dropout", "1"),
    ],
)
def test_bad_settings_are_one_line(adapter, culprit, message):
    with pytest.raises(BadInput) as raised:
        experiment.build(resolve(config(adapter)))
    text = str(raised.value)
    assert culprit in text and message in text and "\n" not in text


OF_THE_HEAD = ["fedper", "fedrep", "fedc2i", "fediir", "feddbe", "fedproto", "fedsr", "fedrod"]


@pytest.mark.parametrize("method", slow_but(OF_THE_HEAD[:2], OF_THE_HEAD))
def test_methods_of_the_head_need_a_trained_head(method):
    with pytest.raises(BadInput, match="head.*frozen"):
        experiment.build(resolve(config({**LORA, "layers": ""}, method={"name": method})))


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("layers", ["", "head"])
def test_every_method_trains_adapters_or_refuses_them_in_one_line(method, layers):
    section = {"name": method}
    try:
        built = experiment.build(resolve(config({**LORA, "layers": layers}, method=section)))
        Engine(built.simulation).lower()
    except BadInput as error:
        assert "\n" not in str(error)


def test_the_rate_of_a_frozen_last_layer_is_refused():
    with pytest.raises(BadInput, match=r"local\.head_factor"):
        experiment.build(resolve(config({**LORA, "layers": ""}, local={"head_factor": 2.0})))


@pytest.mark.exhaustive
@pytest.mark.parametrize("bits", [32, 8])
def test_a_group_of_devices_divides_the_base_and_trains_the_same_adapters(monkeypatch, bits):
    """Also with dropout on the adapters' input; each of two devices holds half of the base."""
    monkeypatch.setattr(fsdp, "SMALLEST", 8)
    devices, states = jax.devices()[:4], []
    for group in (1, 2):
        engine = {"fsdp": group, "seeds": "sequential"}
        sections = resolve(config({**LORA, "dropout": 0.3, "bits": bits}, engine=engine))
        job = experiment.build(sections, devices=devices)
        base = Engine(job.simulation).lanes[0].settings[BASE]
        held = tree.num_bytes([a.addressable_shards[0].data for a in jax.tree.leaves(base)])
        assert held <= tree.num_bytes(base) / group + 8  # a scale of one number is not divided
        states.append(runner.run(job, quiet=True).states)
    toys.close(*states, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
def test_a_run_starts_from_the_adapters_of_another(tmp_path):
    """Also with a quantized base, and without a trained head; FFA-LoRA and FLoRA refuse."""
    adapter = {**LORA, "layers": "", "bits": 8}
    first = run(adapter, workdir=tmp_path / "first", run={"rounds": 2})
    start = {"rounds": 1, "eval_every": 1, "start_from": str(tmp_path / "first")}
    again = run(adapter, run=start, local={"lr": 1e-12})
    both = (jax.tree.leaves(each.states[0].server) for each in (again, first))
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    with pytest.raises(BadInput, match="ffa_lora.*given adapters"):
        run(adapter, run=start, method={"name": "ffa_lora"})
    flora = {**adapter, "bits": 32}
    run(flora, workdir=tmp_path / "flora", run={"rounds": 2}, method={"name": "flora"})
    with pytest.raises(BadInput, match="changed the frozen weights"):
        run(flora, run={**start, "start_from": str(tmp_path / "flora")})


@pytest.mark.parametrize(("key", "value"), [("r", -4), ("r", 0), ("r", "8"), ("lora_alpha", None)])
def test_a_folder_of_adapters_with_an_impossible_scale_is_one_line(key, value, tmp_path):
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": True, key: value}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert f"{key} is {value!r}" in complaint(peft_files.read, str(tmp_path), None, 2.0, {})
