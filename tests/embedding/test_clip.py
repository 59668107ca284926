"""Tests CLIP: the towers against PyTorch, the files of the hub, and cached embeddings."""

import json
import sys

import jax
import ml_dtypes
import numpy as np
import optional
import pytest
from inputs import complaint
from PIL import Image

optional.module("transformers")
save_file = optional.module("safetensors.numpy").save_file
ByteLevel = optional.module("tokenizers.pre_tokenizers").ByteLevel


from fedjax_lab.data.dataset import Dataset, single_domain  # noqa: E402
from fedjax_lab.data.sources.image_folders import image_folders  # noqa: E402
from fedjax_lab.models import clip_towers as towers  # noqa: E402
from fedjax_lab.models.embeddings import clip as source  # noqa: E402

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
START, END = "<|startoftext|>", "<|endoftext|>"
BYTES = sorted(ByteLevel.alphabet())
WORDS = {word: i for i, word in enumerate([*BYTES, *(b + "</w>" for b in BYTES), "ph", START, END])}
CONTEXT, SIDE, WIDTH = 24, 8, 6  # tokens; pixels; features
LAYERS = {"num_hidden_layers": 2, "hidden_act": "quick_gelu"}
TEXT = LAYERS | {
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": 2,
}
IMAGE = LAYERS | {
    "hidden_size": 12,
    "intermediate_size": 16,
    "num_attention_heads": 3,
    "image_size": SIDE,
    "patch_size": 4,
}
LATER = {"hidden_act": "gelu", "eos_token_id": 40}  # the values of newer models


def tensors() -> dict[str, np.ndarray]:
    """Returns random weights and biases with the names and shapes of the hub."""
    shapes = {"text_projection.weight": (WIDTH, 8), "visual_projection.weight": (WIDTH, 12)}
    shapes |= {
        "text_model.embeddings.token_embedding.weight": (len(WORDS), 8),
        "text_model.embeddings.position_embedding.weight": (CONTEXT, 8),
        "vision_model.embeddings.class_embedding": (12,),
        "vision_model.embeddings.patch_embedding.weight": (12, 3, 4, 4),
        "vision_model.embeddings.position_embedding.weight": (5, 12),
    }
    norms = {"text_model.final_layer_norm": 8}
    norms |= {"vision_model.pre_layrnorm": 12, "vision_model.post_layernorm": 12}
    for model, d, hidden in (("text_model", 8, 12), ("vision_model", 12, 16)):
        for i in range(2):
            block = f"{model}.encoder.layers.{i}"
            dense = {f"self_attn.{name}_proj": (d, d) for name in ("q", "k", "v", "out")}
            dense |= {"mlp.fc1": (hidden, d), "mlp.fc2": (d, hidden)}
            for name, shape in dense.items():
                shapes[f"{block}.{name}.weight"] = shape
                shapes[f"{block}.{name}.bias"] = shape[:1]
            norms |= {f"{block}.layer_norm1": d, f"{block}.layer_norm2": d}
    for name, d in norms.items():
        shapes |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
    rng = np.random.default_rng(0)
    made = {name: 0.4 * rng.standard_normal(shape) for name, shape in sorted(shapes.items())}
    for name in norms:
        made[f"{name}.weight"] += 1
    made["logit_scale"] = np.array(2.6592)
    return {name: tensor.astype(np.float32) for name, tensor in made.items()}


def write(folder, changes=None, weights=None):
    """Writes a model in the hub's format; `changes` apply to both sections of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    text, image = TEXT | (changes or {}), IMAGE | (changes or {})
    image.pop("eos_token_id", None)
    config = {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": WIDTH}
    config |= {"text_config": text, "vision_config": image}
    processor = {"size": SIDE, "crop_size": SIDE, "resample": 3}
    processor |= {"image_mean": MEAN, "image_std": STD}
    processor |= {f"do_{step}": True for step in ("resize", "center_crop", "normalize")}
    merges = "#version: 0.2\np h\n"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "vocab.json").write_text(json.dumps(WORDS))
    (folder / "merges.txt").write_text(merges)
    save_file(tensors() if weights is None else weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write(tmp_path_factory.mktemp("clip"))


pytestmark = pytest.mark.usefixtures("empty_cache")


def tower_inputs(eos: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [2, SIDE, SIDE, 3] and texts [3, CONTEXT].

    Each text contains token 2 and is padded with its end token. If the end token is 40, there are
    higher tokens before it; otherwise the end token is the last one of the vocabulary.
    """
    rng = np.random.default_rng(1)
    pixels = rng.standard_normal((2, SIDE, SIDE, 3)).astype(np.float32)
    tokens = rng.integers(50, len(WORDS) - 1, (3, CONTEXT)).astype(np.int32)
    tokens[:, 3] = 2
    for row, end in enumerate((5, 23, 11)):
        tokens[row, end:] = 40 if eos == 40 else len(WORDS) - 1
    return pixels, tokens


def apply(folder, make, inputs):
    """Returns the output of one tower of the model in a folder."""
    tower, example = make(towers.read_settings(folder))
    params = towers.read_weights(folder / "model.safetensors", tower, example)
    return np.asarray(jax.jit(tower.apply)({"params": params}, inputs))


def test_vit_b_32_has_151_million_parameters():
    count = 1  # logit_scale
    for make in (towers.image_tower, towers.text_tower):
        tower, example = make(towers.Settings())
        shapes = jax.eval_shape(tower.init, jax.random.key(0), example)
        count += sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert count == 151_277_313


@pytest.mark.parametrize(("name", "changes"), [("openai", {}), ("later", LATER)])
def test_the_towers_match_stored_outputs_of_transformers(tmp_path, name, changes):
    folder, eos = write(tmp_path / "model", changes), changes.get("eos_token_id", 2)
    pixels, tokens = tower_inputs(eos)
    image = apply(folder, towers.image_tower, pixels)
    text = apply(folder, towers.text_tower, tokens)
    for ours, stored in zip((image, text), STORED[name], strict=True):
        np.testing.assert_allclose(ours[-1], stored, atol=1e-5)


STORED = {  # the features of CLIPModel in PyTorch for the last image and the last text
    "openai": (
        [-0.629846, 0.62093, -5.100881, 0.38584, 2.664871, 1.889727],
        [1.738738, -0.120674, -0.603822, -2.500083, 2.010873, -2.471446],
    ),
    "later": (
        [-0.635884, 0.618728, -5.09447, 0.38602, 2.659413, 1.880369],
        [1.858598, -0.759084, -0.889709, -2.259271, 2.245158, -2.635648],
    ),
}


def read_image_weights(folder):
    tower, example = towers.image_tower(towers.read_settings(folder))
    return towers.read_weights(folder / "model.safetensors", tower, example)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_weights_become_float32(tmp_path, dtype):
    halves = {name: tensor.astype(dtype) for name, tensor in tensors().items()}
    made = read_image_weights(write(tmp_path / "model", weights=halves))
    kernel = made["vision_model.encoder.layers.1"]["mlp.fc1"]["kernel"]
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(made))
    expected = halves["vision_model.encoder.layers.1.mlp.fc1.weight"].T.astype(np.float32)
    assert np.array_equal(kernel, expected)


def test_duplicate_sections_of_old_configs_take_precedence(model, tmp_path):
    folder = write(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    assert towers.read_settings(folder) == towers.read_settings(model)
    config["text_config_dict"] = {"hidden_size": 32}
    config["vision_config_dict"] = None
    (folder / "config.json").write_text(json.dumps(config))
    settings = towers.read_settings(folder)
    assert settings.text == towers.TextSettings(hidden_size=32)  # the others are defaults
    assert settings.image == towers.read_settings(model).image


FIRST = "vision_model.encoder.layers.0.self_attn.q_proj.bias"


def test_weights_that_do_not_fit_the_config_are_rejected(tmp_path):
    others = {name: tensor for name, tensor in tensors().items() if name != FIRST}
    for weights, expected in (
        (others, f"has no tensor {FIRST} (1 missing)"),
        (others | {FIRST[:-4] + "bais": np.zeros(12, np.float32)}, "has no tensor"),
        (tensors() | {FIRST: np.zeros(11, np.float32)}, f"{FIRST} has shape [11]"),
        (tensors() | {"vision_model.x": np.zeros(1, np.float32)}, "tensor vision_model.x is not"),
    ):
        folder = write(tmp_path / "model", weights=weights)
        assert expected in complaint(read_image_weights, folder)
    file = write(folder) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "model.safetensors cannot be read" in complaint(read_image_weights, folder)
    write(folder, {"num_hidden_layers": 10**9})  # making such a tower would never finish
    message = complaint(read_image_weights, folder)
    assert "config.json has 1000000000 layers, but there are only" in message


def test_unsupported_configs_are_rejected(tmp_path):
    for config, expected in (
        ('{"model_type": "siglip"}', "model_type is 'siglip'"),
        ('{"model_type": "clip", "text_config": {"hidden_act": "qick_gelu"}}', "did you mean"),
        ('{"model_type": "clip", "vision_config": {"image_size": [8, 8]}}', "image_size is [8, 8]"),
        ("[]", "is not usable"),
        ("[" * 100_000, "config.json is not usable"),
    ):
        (tmp_path / "config.json").write_text(config)
        assert expected in complaint(towers.read_settings, tmp_path)


def test_the_image_processor_resizes_crops_and_normalizes(model):
    """Gray images, and those with fractions as pixels, become color images."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 31, 3), np.uint8))
    made = source.preprocessor(model, towers.read_settings(model))(picture)
    small = picture.resize((12, SIDE), Image.Resampling.BICUBIC)  # the shorter side is SIDE
    middle = np.asarray(small)[:, 2:10] / 255
    np.testing.assert_allclose(made, (middle - MEAN) / STD, atol=1e-5)
    gray, color = pictures(channels=1).x[0], pictures().x[0]
    assert np.array_equal(np.asarray(source._as_image(gray)), np.repeat(gray, 3, 2))
    fractions = (color / 255).astype(np.float32)
    assert np.array_equal(np.asarray(source._as_image(fractions)), color)


def test_the_tokenizer_adds_the_end_token_and_truncates(model):
    tokens = source.tokenizer(model, towers.read_settings(model))
    short, long = tokens(["A phd", "b" * 99])
    by_name = [WORDS[word] for word in (START, "a</w>", "ph", "d</w>", END)]
    assert list(short[:5]) == by_name and len(short) == CONTEXT
    assert list(long) == [WORDS[START], *[WORDS["b"]] * (CONTEXT - 2), WORDS[END]]


def pictures(count=10, size=12, channels=3) -> Dataset:
    """Returns a data set of `count` noise images, of which the last 3 are test images."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (count, size, size, channels), np.uint8)
    y = np.arange(count, dtype=np.int32) % 2
    halves = (x[: count - 3], y[: count - 3]), (x[count - 3 :], y[count - 3 :])
    return single_domain(*halves, ("ape", "cat"), "noise")


def pixels_of(model, images):
    preprocess = source.preprocessor(model, towers.read_settings(model))
    return np.stack([preprocess(image) for image in images])


def tokens_of(model, texts):
    return source.tokenizer(model, towers.read_settings(model))(texts)


@pytest.mark.slow
def test_images_and_prompts_are_embedded_by_their_towers(model):
    data = pictures()
    data = data._replace(test=data.test[::-1].copy())  # the first ones are for testing
    made = source.clip(data, folder=str(model), batch_size=4)  # 7 rows: the last batch is padded
    images = [Image.fromarray(x) for x in data.x[~data.test]]
    expected = apply(model, towers.image_tower, pixels_of(model, images))
    np.testing.assert_allclose(made.examples[~data.test], expected, atol=1e-5)
    prompts = tokens_of(model, ["A photo of an ape", "A photo of a cat"])
    np.testing.assert_allclose(made.labels, apply(model, towers.text_tower, prompts), atol=1e-5)
    assert made.examples.dtype == made.labels.dtype == np.float32
    assert not made.examples[data.test].any() and data.test[:3].all()
    unit = source.clip(data, folder=str(model), normalize=True)
    length = np.linalg.norm(made.labels, axis=1, keepdims=True)
    np.testing.assert_allclose(unit.labels, made.labels / length, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(unit.examples[3:], axis=1), 1, atol=1e-6)
    assert not unit.examples[data.test].any()


def test_texts_are_embedded_by_the_text_tower(model):
    alphabet = ("a", "b", " ")
    x = np.random.default_rng(0).integers(0, 3, (4, 9)).astype(np.int8)
    halves = (x[:3], np.array([0, 1, 2])), (x[3:], np.array([0]))
    made = source.clip(single_domain(*halves, alphabet, "text"), folder=str(model))
    sentences = ["The next character of " + "".join(alphabet[i] for i in text) for text in x[:3]]
    prompts = [f"Character {character}" for character in alphabet]
    expected = apply(model, towers.text_tower, tokens_of(model, sentences + prompts))
    made = np.concatenate([made.examples[:3], made.labels])
    np.testing.assert_allclose(made, expected, atol=1e-5)


@pytest.fixture
def folders(tmp_path):
    """A folder with two images of 40 x 30 pixels for each of two classes."""
    rng = np.random.default_rng(2)
    for name in ("ape", "cat"):
        where = tmp_path / "set" / "noise" / name
        where.mkdir(parents=True)
        for i in range(2):
            Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(where / f"{i}.png")
    return str(tmp_path / "set")


@pytest.mark.slow
def test_original_images_are_preferred_to_shrunken_ones(model, folders):
    first, data = image_folders(folder=folders, size=8), image_folders(folder=folders, size=8)
    assert data.files == first.files  # also when the pixels come from the cache
    names = [file.split("/")[-2:] for file in data.files[1:3]]
    assert names == [["ape", "1.png"], ["cat", "0.png"]]
    data = data._replace(test=np.zeros(len(data.y), bool))  # of all images, also of drawn ones
    made = source.clip(data, folder=str(model))
    images = pixels_of(model, map(Image.open, data.files))
    expected = apply(model, towers.image_tower, images)
    np.testing.assert_allclose(made.examples, expected, atol=1e-5)
    shrunken = source.clip(data._replace(files=()), folder=str(model))
    assert np.abs(shrunken.examples - made.examples).max() > 0.01
    with open(data.files[2], "wb") as file:
        file.write(b"no image")
    assert data.files[2] in complaint(source.clip, data, folder=str(model))


@pytest.fixture
def reads(monkeypatch):
    """The number of images in each batch that is read; shards hold 3 images."""
    monkeypatch.setattr(source, "SHARD", 3)
    counts, before = [], source._images

    def counted(*args):
        side = before(*args)
        return side._replace(read=lambda some: (counts.append(len(some)), side.read(some))[1])

    monkeypatch.setattr(source, "_images", counted)
    return counts


def test_cached_embeddings_are_not_computed_again(model, reads, monkeypatch, empty_cache, caplog):
    """This holds for the shards of an interrupted call; a damaged shard is computed again."""
    data, save = pictures(), source.save

    def save_and_stop(*args):
        save(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(source, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            source.clip(data, folder=str(model), batch_size=2)
    assert reads == [2, 1]  # the first of the shards of 3, 3 and 1
    first = source.clip(data, folder=str(model), batch_size=2)
    assert reads == [2, 1, 2, 1, 1]
    with monkeypatch.context() as patch:
        patch.setattr(source, "read_weights", None)
        again = source.clip(data, folder=str(model), batch_size=5)
    assert all(map(np.array_equal, again, first)) and len(reads) == 5
    (damaged,) = empty_cache.glob("embeddings/*/3-6.npz")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    again = source.clip(data, folder=str(model))
    assert reads[5:] == [3] and all(map(np.array_equal, again, first))
    assert "damaged; computing it again" in caplog.text


def test_other_examples_or_another_model_have_separate_cache_entries(model, tmp_path, empty_cache):
    data = pictures()
    kept = empty_cache / "embeddings"
    source.clip(data, folder=str(model))
    assert len(list(kept.iterdir())) == 2  # one for the images, one for the prompts
    x = data.x.copy()
    x[0, 0, 0, 0] ^= 1
    source.clip(data._replace(x=x), folder=str(model))
    assert len(list(kept.iterdir())) == 3  # the prompts are the same
    weights = tensors()
    weights["text_projection.weight"][0, 0] += 1
    source.clip(data, folder=str(write(tmp_path / "other", weights=weights)))
    assert len(list(kept.iterdir())) == 5


def test_models_are_found_in_the_hubs_cache(monkeypatch, tmp_path):
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    command = "`hf download me/tiny --revision refs/pr/15 --include"
    message = complaint(source.find_model, "", "me/tiny@refs/pr/15")
    assert "not in the hub's cache" in message and command in message
    commit, home = "0123456789" * 4, hub / "models--me--tiny"
    for name in ("main", "refs/pr/15"):
        (home / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "refs" / name).write_text(commit)
    where = write(home / "snapshots" / commit)
    assert source.find_model("", "me/tiny@refs/pr/15").samefile(where)
    assert source.find_model("", "me/tiny").samefile(where)
    (where / "model.safetensors").unlink()
    assert "has no model.safetensors: fetch it" in complaint(source.find_model, "", "me/tiny")
    assert "`hf download me/big --include" in complaint(source.find_model, "", "me/big")
    assert "not in the hub's cache" in complaint(source.find_model, "", "no name!")


def test_a_model_folder_without_a_tokenizer_is_rejected(tmp_path):
    folder = write(tmp_path / "model")
    (folder / "merges.txt").unlink()
    message = complaint(source.find_model, str(folder), "me/tiny")
    assert "has no merges.txt" in message and "hf download me/tiny" in message
    (folder / "tokenizer.json").touch()  # which is enough alone
    assert source.find_model(str(folder), "me/tiny") == folder


def test_inconsistent_model_files_are_rejected(tmp_path, model):
    other = write(tmp_path / "model", {"vocab_size": 100, "image_size": 12})
    settings = towers.read_settings(other)
    message = complaint(source.tokenizer(model, settings), ["A"])
    assert f"token {WORDS[END]} is not below vocab_size 100" in message
    later = settings._replace(text=settings.text._replace(vocab_size=999, eos_token_id=40))
    message = complaint(source.tokenizer(model, later), ["A"])
    assert "a text lacks config.json's eos_token_id, 40" in message
    picture = Image.new("RGB", (9, 9))
    message = complaint(source.preprocessor(model, settings), picture)
    assert "makes images [3, 8, 8], not [3, 12, 12]" in message
    (other / "vocab.json").write_text("{")
    assert "has no readable CLIPTokenizer" in complaint(source.tokenizer, other, settings)


def test_examples_that_are_not_images_are_rejected(model, tmp_path, monkeypatch):
    table, two_channels = np.zeros((10, 7), np.float32), np.zeros((10, 9, 9, 2), np.uint8)
    for x, expected in (
        (table, "images or texts of characters, not examples of shape [7]"),
        (two_channels, "of shape [9, 9, 2]"),
        (np.full((10, 9, 9, 3), 7.5, np.float32), "from 0 to 1, not from 7.5 to 7.5"),
    ):
        data = pictures()._replace(x=x)
        assert expected in complaint(source.clip, data, folder=str(model))
    tokens = pictures()._replace(x=np.ones((10, 5), np.int16))
    message = complaint(source.clip, tokens, folder=str(tmp_path / "nowhere"))
    assert message == "CLIP needs images or texts of characters, not examples of shape [5]"
    assert "batch_size" in complaint(source.clip, data, batch_size=0)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'fedjax_lab[clip]'" in complaint(source.clip, pictures())
