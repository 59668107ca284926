"""Data from memory: arrays, and datasets of PyTorch and Hugging Face, in a run."""

import jax
import numpy as np
import optional
import pytest
from inputs import complaint

import fedjax_lab
from fedjax_lab.data import from_arrays, from_hub, from_torch

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4


class Tensor:
    """As much of a tensor of PyTorch as is needed."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def numpy(self):
        return self.array

    def __array__(self, dtype=None, copy=None):
        return self.array.astype(dtype or self.array.dtype)


class Images:
    """A map-style dataset, as in torchvision."""

    classes = ("cat", "dog")

    def __init__(self, count, channels=3):
        self.x = RNG.random((count, channels, 4, 5)).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return Tensor(self.x[i]), i % 2


@pytest.mark.slow
def test_arrays_train_without_a_file(tmp_path):
    data = from_arrays(X, Y, client=np.arange(40) % 5, split=np.arange(40) % 4 == 3)
    config = {
        "data": data,
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"width": 4},
        "run": {"rounds": 1, "eval_every": 1},
    }
    result = fedjax_lab.run(config, workdir=str(tmp_path / "run"), quiet=True)
    assert result.metrics[-1]["accuracy"]["per_client"] and len(result.states) == 1
    confusion = result.confusion()
    share = 100 * confusion.trace() / confusion.sum()
    assert share == pytest.approx(result.metrics[-1]["global"], rel=1e-5)
    assert confusion.sum(1).tolist() == [0, 0, 0, 10]  # every fourth example is a test example
    assert result.plot().axes and result.workdir == result.folder
    for name, said in (("m.onnx", "no format .onnx"), ("run", "exists"), ("no/m", "no folder")):
        assert said in complaint(result.export, tmp_path / name)
    error = complaint(fedjax_lab.run, None, workdir=str(tmp_path / "run"), resume=True)
    assert "cannot be determined whether this function has changed" in error
    optional.module("flatbuffers")
    result.export(tmp_path / "model.stablehlo", client=2)
    program = jax.export.deserialize((tmp_path / "model.stablehlo").read_bytes())
    np.testing.assert_allclose(program.call(X[:7]), result.predict(X[:7], client=2), rtol=1e-5)


def test_images_of_pytorch_get_their_channels_last():
    train, test = Images(6), Images(2)
    made = from_torch(train, test, client=list("aabbcccc"))["name"]()
    np.testing.assert_array_equal(made.x[:6], np.moveaxis(train.x, 1, -1))
    assert made.test.tolist() == [False] * 6 + [True] * 2
    assert made.classes == ("cat", "dog") and made.users == ("a", "b", "c")
    alone = from_torch(Images(10))["name"]()
    assert alone.test.sum() == 2 and alone.test_is_drawn


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "images"))
    made = optional.module("datasets")
    made.disable_progress_bars()
    return made


def test_a_dataset_of_hugging_face_from_its_columns(hub):
    from PIL import Image

    pixels = RNG.integers(0, 256, (20, 5, 4, 3)).astype(np.uint8)
    kinds = {"image": hub.Image(), "label": hub.ClassLabel(names=["bee", "ant"])}
    kinds["writer"] = hub.Value("string")
    content = {"image": [Image.fromarray(each) for each in pixels], "label": [0, 1] * 10}
    content["writer"] = list("aabbb" * 4)
    table = hub.Dataset.from_dict(content, features=hub.Features(kinds))
    made = from_hub(table, client="writer")["name"]()
    assert np.array_equal(made.x, pixels) and made.classes == ("bee", "ant")
    assert [made.users[each] for each in made.client] == content["writer"]
    assert made.test.sum() == 4 and made.test_is_drawn
    parts = hub.DatasetDict(train=table.select(range(15)), test=table.select(range(15, 20)))
    split = from_hub(parts, size=8, color="gray")["name"]()
    assert split.x.shape == (20, 8, 8, 1) and split.domains == ("from_hub",)
    assert split.test.tolist() == [False] * 15 + [True] * 5 and not split.test_is_drawn
    assert "no setting 'colour'; did you mean 'color'?" in complaint(from_hub, table, colour="rgb")
    assert "data.color cannot be 'red'" in complaint(from_hub, table, color="red")
    assert "from_hub has no column 'by'" in complaint(from_hub, table, client="by")
    stream = table.to_iterable_dataset()
    assert "which has a length" in complaint(from_hub, stream)


@pytest.mark.slow
def test_texts_of_hugging_face_train(hub):
    texts = [f"{word} film {i}" for i in range(10) for word in ("good", "bad")]
    table = hub.Dataset.from_dict({"text": texts, "label": ["up", "down"] * 10})
    config = {
        "data": from_hub(table, length=4, tokenizer="words", vocabulary=32),
        "partition": {"name": "iid", "num_clients": 2},
        "model": {"name": "fasttext"},
        "run": {"rounds": 1, "eval_every": 1},
    }
    result = fedjax_lab.run(config, quiet=True)
    assert result.metrics[-1]["accuracy"]["per_client"]


def test_wrong_data_are_refused_when_they_are_given():
    assert "x has 40 examples" in complaint(from_arrays, X, Y[:7])
    assert "NaN or infinite" in complaint(from_arrays, X * np.nan, Y)
    assert "a pair of an example and its label" in complaint(from_torch, [1, 2])
    assert "the same shape" in complaint(from_torch, [(X[0], 0), (X[0, :2], 1)])
    assert "has no examples" in complaint(from_torch, [])


def test_names_with_a_missing_one_are_refused():
    client = ["north", float("nan"), "south", "south"]  # NumPy would name it "nan"
    said = complaint(from_arrays, np.zeros((4, 2)), [0, 1, 0, 1], client=client)
    assert "client must hold integers or strings" in said


def test_masked_arrays_are_refused_unless_nothing_is_masked():
    masked = np.ma.masked_greater(X, 1)
    for given in ((masked, Y), (X, np.ma.masked_equal(Y, 3))):
        assert "masked values, first in row" in complaint(from_arrays, *given)
    made = from_arrays(np.ma.array(X), Y)["name"]()
    np.testing.assert_array_equal(made.x, X)
    assert "y is None" in complaint(from_arrays, X, None)


def test_random_transforms_of_a_torch_dataset_are_named():
    class Flipping(Images):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return (Tensor(x.numpy()[..., ::-1]) if RNG.random() < 0.5 else x), y

    fixed, random = Images(20), Flipping(20)
    assert from_torch(fixed, fixed)["name"]().remarks == ()
    (line,) = from_torch(fixed, random)["name"]().remarks
    assert "transform of test is random" in line
