"""A federated language model: adapters of a small decoder on generated instructions."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optional
import pytest
from slow_cases import in_ci

import fedjax_lab
from fedjax_lab import tree
from fedjax_lab.data.formats import tokenizer_files
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import choices, generation

optional.module("qwix")
pytestmark = pytest.mark.slow
CONFIG = {
    "data": {"name": "generated_instructions", "users": 6, "records": 10, "length": 80},
    "task": {"name": "tokens"},
    "partition": {"name": "by_client", "num_clients": 0},
    "model": {"name": "decoder", "width": 16, "heads": 2},
    "adapter": {"name": "lora", "rank": 3, "targets": "q,v,down"},
    "local": {"optimizer": "adamw", "lr": 0.01, "steps": 3, "batch_size": 4},
    "run": {"rounds": 2, "eval_every": 2, "cohort": 4},
}


@pytest.fixture(scope="module")
def trained():
    return fedjax_lab.run(CONFIG, quiet=True)


def changed(section, **values):
    return {**CONFIG, section: {**CONFIG.get(section, {}), **values}}


def test_only_the_adapters_are_sent_and_the_row_has_the_measures_of_text(trained):
    row = trained.rows[-1]
    adapters = sum(a.size for a in jax.tree.leaves(trained.states[0].server))
    assert adapters == 2 * 3 * (2 * (16 + 16) + 48 + 16)
    assert row["bytes_up"] == 2 * 4 * 4 * adapters
    bits = np.log2(row["perplexity"]["mean"])
    assert 6 < bits < 8.2  # of a token: one of 261 at first
    assert bits < row["bits_per_byte"]["mean"] < 1.5 * bits  # the end of a turn has no bytes
    assert 0 <= row["accuracy"]["mean"] <= 100


@pytest.mark.parametrize("bits", in_ci([4], [32, 8, 4]))
def test_no_array_of_a_round_has_clients_and_the_base(bits):
    """The clients share the base, quantized or not, in the loop over layers too."""
    sizes = {"model": {"name": "decoder", "width": 64, "heads": 2, "hidden": 192, "depth": 3}}
    config = {**changed("adapter", bits=bits), **sizes, "run": {"rounds": 1, "cohort": 5}}
    config["engine"] = {"strategy": "vectorized"}
    simulation = experiment.build(resolve(config), devices=jax.devices()[:1]).simulation
    (programs,) = Engine(simulation).lower().values()
    text = programs.play.as_text()
    assert re.search(r"tensor<5x4x\d+x64xf32>", text)  # the values of five clients
    matrices = [leaf for leaf in jax.tree.leaves(simulation.base.base) if leaf.size > 1000]
    assert len(matrices) >= 9
    for leaf in matrices:
        shape = "x".join(map(str, leaf.shape))
        assert f"tensor<{shape}x" in text
        assert f"tensor<5x{shape}x" not in text


@pytest.mark.exhaustive
def test_packed_test_records_have_the_measures_of_records_alone():
    """By user and category too, of a model that has not been trained yet."""
    untrained = {"run": {"rounds": 1, "eval_every": 1}, "local": {"lr": 1e-12}, "task": {}}
    untrained["task"] = {"name": "tokens", "block": 32}
    rows = []
    for packing in (False, True):
        config = {**changed("data", packing=packing), **untrained}
        rows.append(fedjax_lab.run(config, quiet=True).rows[-1])
    for measure in ("perplexity", "bits_per_byte", "accuracy"):
        alone, packed = (row[measure]["per_client"] for row in rows)
        np.testing.assert_allclose(packed, alone, rtol=1e-5)


@pytest.mark.exhaustive
def test_adapters_in_peft_format_start_another_run(trained, tmp_path):
    folder = tmp_path / "adapters.peft"
    trained.export(folder)
    again = changed("adapter", start=str(folder))
    run = fedjax_lab.run(
        {**again, "run": {"rounds": 1, "eval_every": 1}, "local": {"lr": 1e-12}}, quiet=True
    )
    for ours, theirs in zip(
        jax.tree.leaves(run.states[0].server),
        jax.tree.leaves(trained.states[0].server),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    with pytest.raises(BadInput, match="rank"):
        fedjax_lab.run(changed("adapter", start=str(folder), rank=4, alpha=16 * 4 / 3), quiet=True)
    with pytest.raises(BadInput, match="scale.*alpha to 16 and rank to 3"):
        fedjax_lab.run(changed("adapter", start=str(folder), alpha=8.0), quiet=True)
    with pytest.raises(BadInput, match="down_proj.*targets"):
        fedjax_lab.run(changed("adapter", start=str(folder), targets="q,v"), quiet=True)


def test_choices_are_scored_by_the_sum_of_their_tokens_log_probabilities(trained):
    """Against the probabilities of one pass; spaces at the end of a context move to the choice."""
    context, words = "Add 1 and 2: ", ("3", "12 or so", "5")
    asked = [(context, words, 0), ("Reverse: a b", (" b a", " a b"), 1)]
    answers = trained.choose(asked)
    reader = tokenizer_files.read("bytes", ("bytes",))
    weights = trained.model()
    simulation = trained.experiment.simulation
    task = simulation.base.bind(simulation.base.load())
    for choice, score in zip(words, answers.scores[0], strict=True):
        ids = reader.encode(context + choice)[0]
        first = len(reader.encode(context.rstrip())[0])
        logits = task.apply(weights, jnp.asarray([ids], jnp.float32)).logits[0]
        terms = jax.nn.log_softmax(logits)[jnp.arange(len(ids) - 1), jnp.asarray(ids[1:])]
        np.testing.assert_allclose(score, terms[first - 1 :].sum(), rtol=1e-4)
    best = [int(np.argmax(scores)) for scores in answers.scores]
    assert answers.acc == 50.0 * ((best[0] == 0) + (best[1] == 1))
    sizes = [len(word) for word in words]
    by_byte = [int(np.argmax(np.array(answers.scores[0]) / sizes)), best[1]]
    assert answers.acc_norm == 50.0 * ((by_byte[0] == 0) + (by_byte[1] == 1))
    assert trained.choose([("Copy: ", ("a",), 0)]).acc == 100


@pytest.mark.parametrize("name", ["decoder", "gpt2"])
def test_peft_computes_the_same_logits_with_the_adapters(tmp_path, name):
    """A published model in PyTorch, adapted by the package PEFT, against the run's own model."""
    torch, peft = optional.module("torch"), optional.module("peft")
    published = random_model(name, optional.module("transformers"), torch)
    published.save_pretrained(tmp_path / "base")
    config = {**CONFIG, "model": {"name": name, "pretrained": str(tmp_path / "base")}}
    config["adapter"] = {**CONFIG["adapter"], "targets": TARGETS[name]}
    run = fedjax_lab.run(config, quiet=True)
    run.export(tmp_path / "adapters.peft")
    adapted = peft.PeftModel.from_pretrained(published, tmp_path / "adapters.peft")
    ids = run.experiment.dataset.x[:3]
    with torch.no_grad():
        theirs = adapted(torch.tensor(np.asarray(ids, np.int64))).logits.numpy()
    base = run.experiment.simulation.base
    ours = base.bind(base.load()).apply(run.model(), jnp.asarray(ids, jnp.float32)).logits
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    named = zip(tree.names(run.model()), jax.tree.leaves(run.model()), strict=True)
    assert min(np.abs(b).max() for name, b in named if name.endswith("_lora_b")) > 0.001
    count = sum(leaf.size for leaf in jax.tree.leaves(run.model()))
    assert count == sum(p.numel() for n, p in adapted.named_parameters() if "lora_" in n)


TARGETS = {"decoder": "q,v,down", "gpt2": "qkv,down"}  # not the other layer named c_proj


def random_model(name, transformers, torch):
    """A small random model of the package transformers."""
    torch.manual_seed(0)
    if name == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 128}
        given = transformers.GPT2Config(vocab_size=261, **sizes)
        return transformers.GPT2LMHeadModel(given).eval()
    sizes = {"hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    given = transformers.LlamaConfig(vocab_size=261, max_position_embeddings=128, **sizes, **heads)
    return transformers.LlamaForCausalLM(given).eval()


@pytest.mark.parametrize(
    "questions, message",
    [
        ([], "no questions"),
        ([("a", ("b",), 1)], "answer cannot be 1"),
        ([("a", ("b",))], "question 0 must be"),
        ([("a", "bc", 0)], "question 0 must be"),
        ([("a" * 90, ("b",), 0)], "91 tokens, more than the"),
        ([("a", ("",), 0)], "question 0"),
        ([("", ("A", "B C"), 1)], "no token of its own"),
    ],
)
def test_bad_questions_are_one_line(trained, questions, message):
    with pytest.raises(BadInput, match=message):
        trained.choose(questions)


def test_questions_need_a_tokenizer():
    question = choices.Question("a", ("b",), 0)
    run = fedjax_lab.run(
        {"data": {"name": "synthetic", "num_users": 3}, "run": {"rounds": 1, "eval_every": 1}},
        quiet=True,
    )
    with pytest.raises(BadInput, match="config.task.name=tokens"):
        run.choose([question])


@pytest.mark.parametrize("name", in_ci(["flowertune"], ["flowertune", "openfedllm", "pfl_alpaca"]))
def test_published_settings_trace_a_round_on_a_small_model(name):
    """All settings but the sizes; building a run with adapters traces its first round."""
    root = Path(__file__).parents[1]
    small = {"width": 128, "depth": 2, "hidden": 256, "heads": 4, "kv_heads": 2}
    overrides = [(f"model.{key}", str(value)) for key, value in small.items()]
    source = str(root / "launch/speed/random_texts.py:random_texts")
    overrides += [("data.name", source), ("data.length", "16"), ("data.vocabulary", "300")]
    config = resolve(
        load_config(str(root / f"configs/{name}.py")), [*overrides, ("data.rows", "6000")]
    )
    built = experiment.build(config)
    assert "are frozen" in built.remarks[-1]
    assert built.simulation.plan.objective.name == "tokens"


def test_texts_with_a_cache_are_those_without_it(trained):
    """Token by token: greedy and drawn, of adapters, against whole rows."""
    run = trained
    spelled = generation.speller(run.config.data, run.experiment.dataset, raw=False)
    prompt = spelled.prompt("Add 1 and 2")
    assert spelled.decode(prompt) == "Add 1 and 2"
    state = run._settings, *run.client_state(0)

    def logits_of(state, ids):
        settings, message, who = state
        return run._program(settings).method.predict(message, who, ids)

    def written(cached, temperature):
        options = {"temperature": temperature, "key": jax.random.key(1), "cached": cached}
        return generation.write(logits_of, state, prompt, 20, 80, frozenset(), **options)

    for temperature in (0.0, 1.0):
        ids = written(True, temperature)
        assert len(ids) == 20 and ids == written(False, temperature)
    assert run.generate("Add 1 and 2", tokens=20, client=0) == spelled.decode(written(True, 0.0))
    assert run.generate("Add 1 and 2", untrained=True) != run.generate("Add 1 and 2")
    raw = generation.speller(run.config.data, run.experiment.dataset, raw=True)
    assert prompt[-1] != raw.prompt("Add 1 and 2")[-1]  # the turn of the assistant follows
    assert isinstance(run.generate("Add 1", raw=True, tokens=5), str)
    with pytest.raises(BadInput, match="temperature must be"):
        run.generate("Add", temperature=-1.0)


def test_a_model_without_a_cache_writes_rows(trained):
    """Its rows end at the length of the data; the ids are those of the largest logits."""
    likely = jnp.eye(7)[jnp.array([1, 2, 3, 4, 5, 0, 0])]  # after 0 comes 1, and so on

    def logits_of(weights, ids):
        return weights[ids.astype(int)]

    assert generation.write(logits_of, likely, [1, 2], 2, 4, frozenset()) == [3, 4]
    assert generation.write(logits_of, likely, [1, 2], 9, 9, frozenset({5})) == [3, 4]
    with pytest.raises(BadInput, match="more than the 4 tokens"):
        generation.write(logits_of, likely, [1, 2], 9, 4, frozenset())
    with pytest.raises(BadInput, match="the prompt is empty"):
        generation.write(logits_of, likely, [], 9, 4, frozenset())


def test_exported_adapters_name_the_base_on_the_hub(trained, tmp_path):
    trained.export(tmp_path / "adapters.peft", base="someone/model")
    written = json.loads((tmp_path / "adapters.peft" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == "someone/model"
