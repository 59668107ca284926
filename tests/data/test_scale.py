"""What the numbers of examples mean, how they are scaled, and what a loaded run is given."""

import numpy as np
import pytest
from inputs import complaint
from slow_cases import in_ci

import fedjax_lab
from fedjax_lab.commands import data as command
from fedjax_lab.data import normalize, precision, rescaling
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 5, 6)).astype(np.uint8)
COLUMNS = np.stack([RNG.normal(size=40), 500 + 90 * RNG.normal(size=40), np.full(40, 7.0)], 1)
Y, TEST = np.arange(40) % 2, np.arange(40) % 4 == 0


def config_of(place, x, **more):
    """The config of an .npz file with these examples."""
    np.savez(place / "own.npz", x=x, y=Y, split=TEST.astype(int))
    return resolve(
        {
            "data": {"name": "arrays", "path": str(place / "own.npz"), **more.get("data", {})},
            "partition": {"name": "iid", "num_clients": 2},
            "model": {"name": "mlp", **more.get("model", {})},
            "run": {"rounds": 1, "eval_every": 1},
        }
    )


def inputs(place, x, name="unit"):
    """The inputs of the model for all examples of an .npz file, and the lines of a run."""
    config = config_of(place, x, data={"normalize": name})
    data = experiment.load_data(config.data)
    scale = experiment.make_scale(config.data, data)
    seen = (np.asarray(data.x, np.float32) - scale.center) * scale.scale
    return seen, experiment.describe_examples(config, data, scale)


INTEGERS = ("u1", "i2", "<u2", ">u2", "i4", "u4", "i8", ">i8", "u8")


@pytest.mark.parametrize("kind", INTEGERS)
def test_pixels_of_any_integer_type_are_divided_by_255(kind, tmp_path):
    seen, lines = inputs(tmp_path, PIXELS.astype(kind))
    np.testing.assert_array_equal(seen[..., 0], PIXELS * np.float32(1 / 255))
    assert lines == (
        "examples: images of 5x6x1, 8-bit pixels, divided by 255 (data.normalize=unit)",
    )


@pytest.mark.parametrize("shape", [(40, 30), (40, 5, 6, 1)])
@pytest.mark.parametrize("kind", ["?", *INTEGERS, "i1", "f2", "f4", "f8"])
def test_zeros_and_ones_are_taken_as_they_are(kind, shape, tmp_path):
    bits = (PIXELS > 99).reshape(shape)
    seen, lines = inputs(tmp_path, bits.astype(kind))
    np.testing.assert_array_equal(seen, bits)
    assert len(lines) == 1 and "from 0 to 1, as they are" in lines[0]


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "i8", "f2", "f8"])
def test_columns_are_taken_as_they_are(kind, tmp_path):
    x = (PIXELS % 100).reshape(40, 30).astype(kind)
    seen, lines = inputs(tmp_path, x)
    np.testing.assert_array_equal(seen, x)
    assert "rows of 30" in lines[0] and "normalize=standard" in lines[1]


OTHER = {
    "int16 below 0": (PIXELS.astype(np.int16) - 9, "images of integers from -"),
    "uint16": (PIXELS.astype(np.uint16) * 257, "are not 8-bit pixels: --config.data.normalize=sta"),
    "float pixels": (PIXELS.astype(float), "images of real numbers from 0 to 255: --config.data.n"),
    "flat pixels": (
        PIXELS.reshape(40, 30),
        "may be pixels or columns: --config.data.normalize=pix",
    ),
    "flat floats": (PIXELS.reshape(40, 30) * 1.0, "may be pixels or columns"),
    "channels first": (np.zeros((40, 3, 8, 8)), "[R, channels, H, W]; images are [R, H, W, chann"),
    "six channels first": (np.zeros((40, 6, 8, 8), np.uint8), "use numpy.moveaxis(x, 1, -1)"),
    "half of -1..1": ((PIXELS / 127.5 - 1, "half"), "half needs images of integers from 0 to 255"),
    "cifar100 of gray": ((PIXELS, "cifar100"), "needs color images"),
    "half of rows": ((COLUMNS, "half"), "half needs images"),
    "pixels of 0..1": ((PIXELS / 255, "pixels"), "divides numbers from 0 to 255 by 255, but"),
    "infinite": (np.where(PIXELS == 0, np.inf, PIXELS), "NaN or infinite"),
}


@pytest.mark.parametrize("case", OTHER)
def test_numbers_without_a_plain_meaning_are_refused_with_a_remedy(case, tmp_path):
    given, expected = OTHER[case]
    x, *name = given if isinstance(given, tuple) else (given,)
    assert expected in complaint(inputs, tmp_path, x, *name)


def test_each_normalization_computes_what_it_says(tmp_path):
    color = np.stack([PIXELS, PIXELS // 2, PIXELS // 3], -1)
    unit = color / 255
    for x in (color, color.astype(int), unit):  # the same pictures
        half = inputs(tmp_path, x, "half")[0]
        np.testing.assert_allclose(half, 2 * unit - 1, atol=1e-6)
        mean, std = map(np.array, normalize.CHANNELS["imagenet"])
        named = inputs(tmp_path, x, "imagenet")[0]
        np.testing.assert_allclose(named, (unit - mean) / std, atol=1e-5)
    for x in (PIXELS.astype(float), PIXELS.reshape(40, 30).astype(np.int64)):
        np.testing.assert_allclose(inputs(tmp_path, x, "pixels")[0].ravel() * 255, PIXELS.ravel())
    np.testing.assert_array_equal(inputs(tmp_path, color, "none")[0], color)


def test_standard_uses_the_training_examples_alone(tmp_path):
    x = np.where(TEST[:, None], 1e6, COLUMNS)
    seen, lines = inputs(tmp_path, x, "standard")
    train = COLUMNS[~TEST].astype(np.float32).astype(float)
    expected = (train[:, :2] - train[:, :2].mean(0)) / train[:, :2].std(0)
    np.testing.assert_allclose(seen[~TEST, :2], expected, atol=1e-5)
    assert (seen[:, 2] == 0).all()  # constant, also in tests
    assert len(lines) == 1 and "of the training examples (data.normalize=standard)" in lines[0]
    color = np.stack([PIXELS, PIXELS // 2], -1)
    seen = inputs(tmp_path, color, "standard")[0][~TEST]
    np.testing.assert_allclose(seen.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(seen.std((0, 1, 2)), 1, atol=1e-5)


def test_large_and_dark_numbers_are_a_remark(tmp_path):
    unlike, dark = inputs(tmp_path, COLUMNS)[1][1], inputs(tmp_path, PIXELS // 16)[1][1]
    assert "large or unlike scales" in unlike and "normalize=standard" in unlike
    assert "exceeds 15 of 255; --config.data.normalize=standard" in dark
    assert len(inputs(tmp_path, COLUMNS / 500)[1]) == 1
    assert "channels have large" in inputs(tmp_path, np.repeat(PIXELS, 3, 2) / 16)[1][1]


def test_token_ids_stay_integers_and_must_be_whole(tmp_path):
    ids = RNG.integers(0, 250, (40, 6))
    for x in (ids, ids.astype(np.uint8)):
        config = config_of(tmp_path, x, model={"name": "fasttext"})
        words = experiment.make_model(config, experiment.load_data(config.data))
        assert words is not None
    for x, name in ((ids + 0.5, "unit"), (ids, "standard")):
        config = config_of(tmp_path, x, model={"name": "fasttext"}, data={"normalize": name})
        message = complaint(experiment.make_model, config, experiment.load_data(config.data))
        assert "needs texts, rows of token ids" in message


def test_lazy_and_memory_mapped_arrays_are_converted_when_read(tmp_path):
    np.save(tmp_path / "x.npy", PIXELS.astype(np.int16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    lazy = LazyArray(lambda rows: mapped[rows], mapped.shape, mapped.dtype, "digest")
    for x in (mapped, lazy):
        made = normalize.as_meant(x)
        assert isinstance(made, LazyArray) and made.dtype == np.uint8
        np.testing.assert_array_equal(made[3:5], PIXELS[3:5])


def test_data_check_says_what_the_examples_are(tmp_path, capsys):
    config_of(tmp_path, PIXELS)
    flags = ["--config=quickstart", "--config.data.name=arrays", "--config.model.name=mlp"]
    assert command.main(["", "check", *flags, f"--config.data.path={tmp_path}/own.npz"]) == 0
    said = capsys.readouterr().out
    assert "30 training examples, 10 test examples, 2 classes" in said
    assert "8-bit pixels, divided by 255" in said


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A function from a name to a loaded run on pixels, on floats in 0..1 or on columns."""
    made = {}
    of = {"pixels": PIXELS, "unit": PIXELS / 255, "columns": COLUMNS}

    def load(name):
        if name not in made:
            place = tmp_path_factory.mktemp(name)
            fedjax_lab.run(config_of(place, of[name]), quiet=True, workdir=place / "run")
            made[name] = fedjax_lab.load(place / "run")
        return made[name]

    return load


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(["pixels"], ["pixels", "unit"]))
def test_a_loaded_run_brings_images_to_its_own_scale(name, loaded):
    run = loaded(name)
    expected = run.predict(run.experiment.dataset.x)
    loss = run.score((PIXELS, Y))["global_loss"]
    same = (PIXELS, PIXELS.astype(np.int64), PIXELS / 255, PIXELS.astype(np.float32))
    for x in (*same, (PIXELS / 255)[..., None]):
        np.testing.assert_allclose(run.predict(x), expected, atol=1e-5)
        assert run.score((x, Y))["global_loss"] == pytest.approx(loss, rel=1e-4)
    wrong = {
        "from -128 to 127": PIXELS.astype(int) - 128,
        "from 0 to 65535": PIXELS.astype(np.uint16) * 257,
        "NaN or infinite": np.full(PIXELS.shape, np.nan),
        "looks like [R, channels, H, W]": PIXELS[:, None],
        "not [40, 6, 5]": PIXELS.transpose(0, 2, 1),
        "must be numbers": np.full(PIXELS.shape, "a"),
    }
    for expected, x in wrong.items():
        assert expected in complaint(run.predict, x)


@pytest.mark.slow
def test_a_loaded_run_refuses_columns_on_another_scale(loaded):
    run = loaded("columns")
    run.predict(COLUMNS[:3]), run.predict(COLUMNS * 1.2)
    standard = (COLUMNS - COLUMNS.mean(0)) / [1, 90, 1]
    assert "on another scale" in complaint(run.predict, standard)
    assert "shape [N, 3]" in complaint(run.predict, COLUMNS[:, :2])


# Numbers that float32 cannot tell apart.

TIMES = np.stack([1.6e9 + 7.5 * np.arange(40), RNG.normal(size=40)], 1)


def test_large_numbers_are_scaled_before_they_become_float32(tmp_path):
    config = config_of(tmp_path, TIMES, data={"normalize": "standard"})
    data = experiment.load_data(config.data)
    assert data.x.dtype == np.float64 and not precision.merged(TIMES - TIMES.mean(0))
    scale = experiment.make_scale(config.data, data)
    (federation,) = experiment.deal_dataset(config, data, [0], scale=scale)
    train = TIMES[~TEST]
    expected = (TIMES - train.mean(0)) / train.std(0)
    np.testing.assert_allclose(federation.x, expected, atol=1e-6)
    assert federation.x.dtype == np.float32 and len(np.unique(federation.x[:, 0])) == 40
    assert (federation.center, federation.scale) == (0, 1)
    facts = normalize.moments(data.x, np.flatnonzero(~TEST))
    known = rescaling.Known(data.x, (TIMES.min(), TIMES.max()), facts, scale)
    np.testing.assert_array_equal(rescaling.like(TIMES, known), federation.x)
    lazy = LazyArray(lambda rows: TIMES[rows], TIMES.shape, np.float64, None)
    np.testing.assert_array_equal(normalize.in_float32(lazy, scale)[:], federation.x)
    message = complaint(experiment.make_scale, {**config.data, "normalize": "unit"}, data)
    assert "column 0" in message and "--config.data.normalize=standard" in message


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "f8"])
def test_whole_numbers_of_every_type_are_told_apart(kind):
    x = (1_700_000_000 + np.arange(80).reshape(40, 2)).astype(kind)
    np.testing.assert_array_equal(normalize.as_meant(x), x)
    assert normalize.as_meant(x).dtype == np.float64


def test_numbers_that_float64_cannot_tell_apart_are_refused():
    x = 10**18 + np.arange(80).reshape(40, 2)
    assert "too large for float64, column 0" in complaint(normalize.as_meant, x)


def test_ordinary_numbers_are_stored_in_float32():
    """Also if float64 holds rounding errors, or more digits than their spread has."""
    noisy = np.where(np.arange(40) % 2, 0.3, 0.1 + 0.2)
    for column in (RNG.normal(size=40), 290 + 10 * RNG.normal(size=40), noisy, 1e5 + np.arange(40)):
        x = np.stack([column, np.arange(40.0)], 1)
        np.testing.assert_array_equal(normalize.as_meant(x), x.astype(np.float32))
        assert normalize.as_meant(x).dtype == np.float32
    assert normalize.scale_of(noisy[:, None], "standard").scale == 0  # a constant


def test_labels_that_float32_cannot_tell_apart_are_refused():
    precision.check_labels("y", RNG.normal(size=40))
    message = complaint(precision.check_labels, "y", TIMES[:, 0])
    assert "of 40 different ones" in message and "add it to the predictions" in message
