"""hFedF's paper: folders of images, its client net, and the table of unseen domains."""

import json
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from PIL import Image, ImageFile

import fedjax_lab
from fedjax_lab import evaluate, experiment
from fedjax_lab.data import image_folders, images, places
from fedjax_lab.models import conv, inception, layers
from fedjax_lab.models.task import make_task

ROOT = Path(__file__).parent.parent
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "horse")
SIZES = (3, 4, 3, 5)  # images of each class, by domain


# Folders


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(rng, mode="RGB", size=(40, 30)):
    """Smooth noise; `size` is (width, height)."""
    lumps = Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8))
    image = lumps.resize(size, Image.Resampling.BICUBIC).convert(mode)
    if mode == "RGBA":
        image.putalpha(0)
    return image


def make_folders(root, domains=DOMAINS, classes=CLASSES, sizes=SIZES):
    """root/DOMAIN/CLASS/IMAGE, each domain in a type of its own as far as there are."""
    rng = np.random.default_rng(0)
    kinds = [("RGB", ".jpg"), ("RGB", ".JPEG"), ("RGB", ".JPG"), ("L", ".png")]
    for domain, (mode, ending), count in zip(domains, kinds, sizes, strict=False):
        for name in classes:
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(rng, mode).save(folder / f"pic_{number:03}{ending}")
    return root


@pytest.fixture
def pacs(tmp_path):
    """A small PACS as its archive unpacks, with all that an archive may hold besides."""
    root = make_folders(tmp_path / "kfold")
    rng = np.random.default_rng(1)
    picture(rng, "RGBA").save(root / "photo" / "dog" / "pic_900.png")
    picture(rng, "P").save(root / "photo" / "dog" / "pic_901.png")
    (root / "photo" / "dog" / "._pic_000.JPG").write_bytes(b"\0\5\26\7")
    (root / "photo" / "dog" / "Thumbs.db").write_bytes(b"\0")
    (root / "photo" / ".DS_Store").write_bytes(b"\0")
    (root / "splits.txt").write_text("")
    (root / "__MACOSX" / "photo").mkdir(parents=True)
    return tmp_path


def by_hand(path, size=32):
    """An image as the source must see it."""
    image = Image.open(path).convert("RGB")
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


def files_in_order(root):
    return [
        path
        for domain in DOMAINS
        for name in CLASSES
        for path in sorted((root / domain / name).glob("pic_*"))
    ]


def test_the_images_of_folders(pacs, own_cache):
    data = image_folders.pacs(folder=str(pacs))
    files = files_in_order(pacs / "kfold")
    assert (data.domains, data.classes) == (DOMAINS, CLASSES)
    assert (data.x.dtype, data.y.dtype, data.domain.dtype) == (np.uint8, np.int32, np.int32)
    assert data.x.shape == (len(files), 32, 32, 3) and len(files) == 3 * sum(SIZES) + 2
    assert not data.test.any()
    for row, path in enumerate(files):
        assert np.array_equal(data.x[row], by_hand(path)), path
        names = DOMAINS[data.domain[row]], CLASSES[data.y[row]]
        assert names == (path.parent.parent.name, path.parent.name)
    grey = data.x[data.domain == 3]
    assert np.array_equal(grey[..., 0], grey[..., 1]) and np.array_equal(grey[..., 0], grey[..., 2])


def test_an_image_is_shrunk_with_antialiasing(tmp_path, own_cache):
    """Lines of single pixels become even grey; without a filter some would stay."""
    for domain in "ab":
        folder = tmp_path / "own" / domain / "one"
        folder.mkdir(parents=True)
        lines = np.zeros((64, 64, 3), np.uint8)
        lines[::2] = 255
        Image.fromarray(lines).save(folder / "lines.png")
    data = image_folders.image_folders(folder=str(tmp_path / "own"), size=8)
    assert data.x.shape == (2, 8, 8, 3)
    assert np.abs(data.x.astype(int) - 127).max() <= 12


def test_truncated_images_are_read_as_far_as_they_go(pacs, own_cache):
    for domain, name in (("art_painting", "pic_001.jpg"), ("sketch", "pic_002.png")):
        file = pacs / "kfold" / domain / "horse" / name
        noise = np.random.default_rng(3).integers(0, 256, (128, 128, 3)).astype(np.uint8)
        Image.fromarray(noise).save(file)
        whole = by_hand(file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 6 // 10])
        row = files_in_order(pacs / "kfold").index(file)
        half = image_folders.pacs(folder=str(pacs)).x[row]
        assert np.array_equal(half[:9], whole[:9]) and (half[-9:] != whole[-9:]).mean() > 0.5
        assert ImageFile.LOAD_TRUNCATED_IMAGES is False


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xd8\xff"])
def test_what_is_no_image_is_named(content, pacs, own_cache):
    file = pacs / "kfold" / "photo" / "horse" / "pic_001.JPG"
    file.write_bytes(content)
    message = complaint(image_folders.pacs, folder=str(pacs))
    assert message.startswith(f"{file} is damaged or no image") and "domainbed" in message
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False and not own_cache.exists()


def test_images_are_decoded_once_until_something_changes(pacs, own_cache, monkeypatch):
    calls, decode = [], images.decode
    monkeypatch.setattr(images, "decode", lambda *a: calls.append(a) or decode(*a))
    first = image_folders.pacs(folder=str(pacs))
    again = image_folders.pacs(folder=str(pacs / "kfold"))
    assert len(calls) == 1 and all(map(np.array_equal, first, again))
    image_folders.pacs(folder=str(pacs), size=16)
    assert len(calls) == 2
    file = pacs / "kfold" / "photo" / "dog" / "pic_000.JPG"
    file.rename(file.parent.parent / "horse" / "pic_900.JPG")
    moved = image_folders.pacs(folder=str(pacs))
    assert len(calls) == 3 and sum(moved.y == 2) == sum(first.y == 2) + 1
    assert len(list(own_cache.iterdir())) == 3


@pytest.mark.parametrize(
    ("name", "inside", "folders", "domains"),
    [
        ("pacs", "PACS", DOMAINS, DOMAINS),
        ("pacs", "PACS/kfold", ("art painting", "Cartoon", "photo", "sketch"), DOMAINS),
        ("vlcs", "VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007"), None),
        ("office_home", "office_home", ("Art", "Clipart", "Product", "Real World"), None),
        (
            "office_home",
            "OfficeHomeDataset_10072016",
            ("Art", "Clipart", "Product", "Real_World"),
            ("Art", "Clipart", "Product", "Real World"),
        ),
        (
            "office_home",
            "officehome",
            ("Art", "Clipart", "Product", "RealWorld"),
            ("Art", "Clipart", "Product", "Real World"),
        ),
    ],
)
def test_aliases(name, inside, folders, domains, tmp_path, own_cache, monkeypatch):
    source = experiment.NAMED["data"][name]
    make_folders(tmp_path / inside, folders, ("a", "b"), (1, 2, 1, 1))
    data = source(folder=str(tmp_path), size=8)
    assert data.domains == (domains or folders)
    assert np.bincount(data.domain).tolist() == [2, 4, 2, 2]
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    assert np.array_equal(source(size=8).x, data.x)


def test_a_set_of_ones_own(tmp_path, own_cache):
    make_folders(tmp_path / "own", ("z", "b"), ("two", "one"), (1, 2))
    (tmp_path / "own" / ".git").mkdir()
    data = image_folders.image_folders(folder=str(tmp_path / "own"), size=8)
    assert (data.domains, data.classes) == (("b", "z"), ("one", "two"))
    assert data.domain.tolist() == [0] * 4 + [1] * 2 and data.y.tolist() == [0, 0, 1, 1, 0, 1]


def test_what_is_missing_is_named(pacs, own_cache, monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))
    for source, parts in (
        (image_folders.pacs, ("no PACS in", "art_painting, cartoon, photo, sketch", "/PACS)")),
        (image_folders.vlcs, ("no VLCS in", "VOC2007", "~/.cache/fedjax_lab/VLCS")),
        (image_folders.office_home, ("no Office-Home in", "Real World", "/office_home)")),
    ):
        message = complaint(source)
        expected = ("/nowhere/a or /nowhere/b", "domainbed/scripts/download.py", "data.folder")
        assert all(part in message for part in (*parts, *expected))
    assert str(pacs) in complaint(image_folders.vlcs, folder=str(pacs))

    root = pacs / "kfold"
    load = partial(image_folders.pacs, folder=str(pacs))
    assert "data.size is 7" in complaint(load, size=7)
    for path in (root / "cartoon" / "horse").iterdir():
        path.unlink()
    assert complaint(load).startswith(f"{root / 'cartoon' / 'horse'} has no images (.jpg, .jpeg")
    (root / "cartoon" / "horse").rmdir()
    assert complaint(load).startswith(f"{root / 'cartoon' / 'horse'} has no images")
    (root / "sketch").rename(root / "drawings")
    assert f"{root} has no folder sketch" in complaint(load)


def test_what_is_wrong_with_ones_own_set_is_named(tmp_path, own_cache):
    for folder in ("", str(tmp_path / "nothing")):
        message = complaint(image_folders.image_folders, folder=folder)
        assert "is not a folder" in message and "DOMAIN/CLASS/IMAGE" in message
    assert "no folders of domains" in complaint(image_folders.image_folders, folder=str(tmp_path))
    (tmp_path / "a").mkdir()
    assert "no folders of classes" in complaint(image_folders.image_folders, folder=str(tmp_path))
    message = complaint(experiment.resolve, {"data": {"name": "image_folders"}})
    assert "needs config.data.folder" in message


# A run


def config(folder, **data):
    return {
        "data": {"name": "pacs", "folder": str(folder), "size": 8, **data},
        "partition": {
            "name": "domains_per_client",
            "num_clients": 2,
            "domains": 2,
            "validation": 0.2,
        },
        "local": {"batch_size": 8, "lr": 0.1},
        "run": {"rounds": 2, "eval_every": 1},
    }


def test_a_run_without_test_rows(pacs, own_cache, tmp_path, capsys):
    """id from validation rows, ood from all of the unseen domain, no accuracy."""
    result = fedjax_lab.run(config(pacs, unseen="photo"), seeds=[0, 1], workdir=tmp_path / "run")
    assert len(result.metrics) == 4
    for row in result.metrics:
        assert not {"accuracy", "domains", "global"} & set(row)
        assert len(row["id_per_client"]) == len(row["ood_per_client"]) == 2
        assert np.mean(row["id_per_client"]) == pytest.approx(row["id"])
        assert np.mean(row["ood_per_client"]) == pytest.approx(row["ood"])
        for value in row["ood_per_client"]:  # of 3 * 3 + 2 images
            assert value * 11 / 100 == pytest.approx(round(value * 11 / 100), abs=1e-4)
    last = result.summary["last"]["mean"]
    assert {"id", "ood"} <= set(last) and not {"accuracy", "global"} & set(last)
    assert (tmp_path / "run" / "plots" / "learning_curve.png").exists()


def test_who_holds_what_in_that_run(pacs, own_cache):
    resolved = experiment.resolve(config(pacs, unseen="photo"))
    data = experiment.load_data(resolved)
    (federation,) = experiment.make_federations(resolved, data, [0])
    assert federation.test is None and federation.world is None
    assert np.array_equal(federation.unseen, np.flatnonzero(data.domain == 2))
    rows = [np.asarray(a) for a in (federation.train, federation.validation)]
    held = np.concatenate([a[a >= 0] for a in rows])
    assert np.array_equal(np.sort(held), np.flatnonzero(data.domain != 2))
    domains = [set(data.domain[r[r >= 0]]) for r in rows[0]]
    assert domains == [{0, 3}, {1, 3}]  # d=2: sketch, the largest, is cut in two


def test_a_run_with_nothing_to_score_is_refused(pacs, own_cache):
    plain = config(pacs)
    plain["partition"]["validation"] = 0.0
    message = complaint(experiment.build, experiment.resolve(plain))
    assert "nothing to score" in message and "data.unseen" in message
    message = complaint(experiment.build, experiment.resolve(config(pacs, unseen="fotos")))
    assert "photo" in message


def test_clients_are_told_apart():
    def hits(right, asked):
        return evaluate.Hits(jnp.array(right, float), jnp.array(asked, float))

    validation = hits([[1, 0], [0, 3], [0, 0]], [[2, 0], [0, 4], [0, 0]])
    unseen = hits([[0, 5], [0, 1], [0, 3]], [[0, 10]] * 3)
    got = evaluate.summarise(evaluate.Scores(validation, None, None, unseen), ("a", "b"))
    assert got == {
        "id": 62.5,
        "id_per_client": [50, 75, None],
        "ood": pytest.approx(30),
        "ood_per_client": pytest.approx([50, 10, 30]),
    }


# The net


@pytest.mark.parametrize(
    ("num_classes", "pool", "count"),
    [
        (7, "max", 928_199),
        (5, "max", 927_685),
        (65, "max", 943_105),
        (7, "avg", 928_199),
        (7, "identity", 928_199),
    ],
)
def test_published_sizes(num_classes, pool, count):
    net = inception.hfedf_cnn(num_classes, inception_pool=pool)
    task = make_task(net, (32, 32, 3), num_classes)
    params = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)).params)
    assert sum(leaf.size for leaf in params) == count
    assert len(params) == 22 and len(task.layers) == 11 and not task.batch_norms
    assert task.dense[-1] == "head" and len(task.dense) == 2


def test_the_rows_of_table_7():
    net = inception.hfedf_cnn(7)
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(net.init, jax.random.key(0), x)
    _, seen = jax.eval_shape(partial(net.apply, capture_intermediates=True), variables, x)
    seen = seen["intermediates"]
    shapes = {name: part["__call__"][0].shape[1:] for name, part in seen.items() if name[0] != "_"}
    assert shapes == {
        "Conv_0": (32, 32, 32),
        "Conv_1": (16, 16, 32),
        "Conv_2": (16, 16, 64),
        "Inception_0": (8, 8, 176),
        "Inception_1": (8, 8, 288),
        "Dropout_0": (2592,),
        "Dense_0": (256,),
        "head": (7,),
    }
    branches = [seen["Inception_1"][f"Conv_{i}"]["__call__"][0].shape[1:] for i in range(3)]
    assert branches == [(8, 8, 32), (8, 8, 64), (8, 8, 16)]
    kernels = [variables["params"]["Inception_0"][f"Conv_{i}"]["kernel"].shape for i in range(3)]
    assert kernels == [(1, 1, 64, 32), (3, 3, 64, 64), (5, 5, 64, 16)]


def pooled_by_hand(x):
    """3x3 maximum, stride 1, padded by -inf."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows.max((-2, -1))


@pytest.fixture(scope="module")
def small():
    """A net of width 4, its weights, two images and all that its layers make of them."""
    net = inception.hfedf_cnn(3, width=4)
    x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)), jnp.float32)
    variables = jax.jit(net.init)(jax.random.key(0), x)
    apply = jax.jit(partial(net.apply, capture_intermediates=True))
    out, seen = apply(variables, x)
    outputs = {
        name: np.asarray(part["__call__"][0])
        for name, part in seen["intermediates"].items()
        if name[0] != "_"
    }
    return net, variables, x, out, outputs


def test_the_second_module_passes_on_the_pooled_first(small):
    """At the paper's width these are the channels 112 .. 287."""
    *_, seen = small
    assert seen["Inception_1"].shape[-1] == 14 + 22
    np.testing.assert_array_equal(
        seen["Inception_1"][..., 14:], pooled_by_hand(seen["Inception_0"])
    )
    assert (seen["Inception_1"] >= 0).all() and (seen["Inception_1"][..., :14] > 0).any()


def averaged_by_hand(x):
    """3x3 mean, stride 1, padded by zeros that count."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return windows.sum((-2, -1)) / 9


@pytest.mark.parametrize(
    ("pool", "by_hand"), [("avg", averaged_by_hand), ("identity", lambda x: x)]
)
def test_other_pools_of_a_module(small, pool, by_hand):
    """Its last channels; the others, and the weights, are those of a module with a maximum."""
    x = small[-1]["Inception_0"]
    plain = inception.Inception((4, 8, 2), "max", conv.mapped)
    variables = {"params": small[1]["params"]["Inception_1"]}
    expected = plain.apply(variables, x)
    found = plain.clone(pool=pool).apply(variables, x)
    np.testing.assert_allclose(found[..., 14:], by_hand(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[..., :14], expected[..., :14])
    assert not np.allclose(found[..., 14:], expected[..., 14:])


def test_pools_are_chosen_by_name():
    net = experiment.NAMED["model"]["hfedf_cnn"](3, width=4, inception_pool="avg")
    assert net.pool == "avg" and inception.hfedf_cnn(3).pool == "max"
    message = complaint(inception.hfedf_cnn, 7, inception_pool="mean")
    assert message.startswith("config.model.inception_pool cannot be 'mean'")


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), (2, None, 0), (3, 2, 1)])
def test_average_pools(window, stride, padding):
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
    found = layers.avg_pool(x, window, stride, padding)
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))
    step = stride or window
    np.testing.assert_allclose(found, windows.mean((-2, -1))[:, ::step, ::step], atol=1e-6)


def test_the_layers_are_in_order(small):
    """What each layer gets, from what the one before gave."""
    _, variables, _, (logits, features), seen = small
    params = jax.tree.map(np.asarray, variables["params"])

    def halved(y):
        b, h, w, c = y.shape
        return np.maximum(y.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4)), 0)

    pointwise = halved(seen["Conv_0"]) @ params["Conv_1"]["kernel"][0, 0]
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(seen["Conv_1"], pointwise + params["Conv_1"]["bias"])
    assert (seen["Conv_1"] < 0).any()
    first = params["Inception_0"]["Conv_0"]
    ones = halved(seen["Conv_2"]) @ first["kernel"][0, 0] + first["bias"]
    close(seen["Inception_0"][..., :4], np.maximum(ones, 0))
    bins = ((0, 3), (2, 6), (5, 8))
    flat = np.concatenate(
        [seen["Inception_1"][:, a:b, c:d].mean((1, 2)) for a, b in bins for c, d in bins], axis=-1
    )
    close(seen["Dropout_0"], flat)
    close(features, flat @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
    assert (np.asarray(features) < 0).any()
    close(logits, features @ params["head"]["kernel"] + params["head"]["bias"])


def test_a_fifth_is_dropped_in_training(small):
    net, variables, x, _, seen = small
    apply = partial(net.apply, capture_intermediates=True, train=True)
    _, training = apply(variables, x, rngs={"dropout": jax.random.key(1)})
    dropped = np.asarray(training["intermediates"]["Dropout_0"]["__call__"][0])
    whole = seen["Dropout_0"]
    lost = (dropped == 0)[whole > 0]
    assert 0.1 < lost.mean() < 0.3
    kept = (dropped != 0) & (whole > 0)
    np.testing.assert_allclose(dropped[kept], whole[kept] / 0.8, rtol=1e-4)


@pytest.mark.parametrize(
    ("n", "out", "bins"),
    [
        (8, 3, [(0, 3), (2, 6), (5, 8)]),
        (7, 6, [(k, k + 2) for k in range(6)]),
        (6, 3, [(0, 2), (2, 4), (4, 6)]),
        (2, 3, [(0, 1), (0, 2), (1, 2)]),
        (5, 1, [(0, 5)]),
    ],
)
def test_adaptive_pooling(n, out, bins):
    x = np.random.default_rng(0).normal(size=(2, n, n + out, 3)).astype(np.float32)
    got = layers.adaptive_avg_pool(x[:, :, :n], out)
    assert got.shape == (2, out, out, 3)
    for i, (a, b) in enumerate(bins):
        for j, (c, d) in enumerate(bins):
            np.testing.assert_allclose(got[:, i, j], x[:, a:b, c:d].mean((1, 2)), atol=1e-6)
    wide = layers.adaptive_avg_pool(x, out)  # height and width are pooled by their own bins
    assert wide.shape == (2, out, out, 3)


def test_adaptive_pooling_of_a_ramp():
    ramp = jnp.broadcast_to(jnp.arange(8.0)[:, None], (8, 8))[None, ..., None]
    np.testing.assert_array_equal(layers.adaptive_avg_pool(ramp, 3)[0, :, 0, 0], [1.0, 3.5, 6.0])


def test_unfit_nets_and_images_are_named():
    for width in (0, 3):
        assert "config.model.width" in complaint(inception.hfedf_cnn, 7, width=width)
    message = complaint(make_task, inception.hfedf_cnn(7), (3, 32, 3), 7)
    assert "hfedf_cnn" in message and "3x32x3" in message


# Configs


@pytest.mark.parametrize(
    ("text", "lr", "weight_decay"),
    [
        ("pacs", 1e-3, 1e-4),
        ("vlcs", 1e-4, 1e-4),
        ("vlcs:local", 1e-4, 1e-4),
        ("vlcs:fedprox", 1e-3, 1e-4),
        ("office_home", 1e-3, 1e-5),
        ("office_home:fedprox", 1e-3, 1e-4),
    ],
)
def test_the_papers_settings(text, lr, weight_decay):
    name, _, method = text.partition(":")
    path = ROOT / "configs" / f"hfedf_{name}.py"
    full = experiment.resolve(experiment.load_config(f"{path}:{method}"))
    assert (full.local.lr, full.local.weight_decay) == (lr, weight_decay)
    assert (full.local.optimizer, full.local.batch_size, full.local.epochs) == ("adam", 64, 2)
    assert (full.run.rounds, full.run.cohort, full.model.width) == (200, 0, 32)
    assert (full.partition.num_clients, full.partition.validation) == (3, 0.1)
    assert full.data.name == name
    assert method != "fedprox" or full.method.mu == 1e-2


# The table


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch"))
    import domain_generalisation

    return domain_generalisation


def rows_of(round, seed, id_per_client, ood_per_client):
    each = {"id_per_client": id_per_client, "ood_per_client": ood_per_client}
    return {"round": round, "seed": seed, **{k: v for k, v in each.items() if v}}


def test_a_cell_is_over_clients_and_seeds(command):
    rows = [
        rows_of(5, 0, [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        rows_of(5, 1, [0.0, 0.0], [1.0, 1.0]),
        rows_of(10, 0, [100.0, 100.0, 100.0], [60.0, 60.0, 60.0]),
        rows_of(10, 1, [96.875, None, 96.875], [40.0, 40.0]),
    ]
    found = command.last_round(rows)
    assert command.cell(found["id"]) == "98.75 (1.53)"
    assert command.cell(found["ood"]) == "52.00 (9.80)"
    assert command.last_round([rows_of(1, 0, None, [1.0])]) == {"ood": [1.0]}


def test_the_table(command):
    cells = {
        "fedavg": {
            "photo": {"id": [80.0, 84.0], "ood": [50.0, 50.0]},
            "sketch": {"id": [60.0], "ood": [41.0]},
        },
        "local": {"photo": {"ood": [10.0]}, "sketch": {}},
    }
    assert command.markdown(cells) == [
        "| | id photo | id sketch | id mean | ood photo | ood sketch | ood mean |",
        "|---|---|---|---|---|---|---|",
        "| `fedavg` | 82.00 (2.00) | 60.00 (0.00) | 71.00 | 50.00 (0.00) | 41.00 (0.00) | 45.50 |",
        "| `local` |  |  |  | 10.00 (0.00) |  |  |",
    ]


def test_every_target_is_a_run(command, monkeypatch, pacs, own_cache, tmp_path, capsys):
    """Without --targets the data say which; a run that fails leaves its cells empty."""
    seen = []

    def run(args, method, folder, overrides):
        seen.append((method, folder.relative_to(tmp_path / "out").as_posix(), overrides))
        if folder.name == "sketch":
            return False
        folder.mkdir(parents=True)
        row = rows_of(2, 0, [90.0, 80.0], [30.0, 30.0])
        row |= {"bytes_up": 1, "bytes_down": 1, "seconds": 1.0}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        return True

    monkeypatch.setattr(command.table, "run", run)
    file = ROOT / "configs" / "hfedf_pacs.py"
    place, rounds = f"--config.data.folder={pacs}", "--config.run.rounds=2"
    arguments = [f"--config={file}", f"--out={tmp_path / 'out'}", "--methods=fedavg,local"]
    monkeypatch.setattr(sys, "argv", ["x", *arguments, "--domains=1,2", place, rounds])
    command.main()
    assert len(seen) == len(set(folder for _, folder, _ in seen)) == 2 * 2 * 4
    own = ["--config.data.unseen=art_painting", "--config.partition.domains=2"]
    assert ("local", "local/d2/art_painting", [place, rounds, *own]) in seen
    out = capsys.readouterr().out
    assert out.count("| `local` | 85.00 (5.00) | 85.00 (5.00) | 85.00 (5.00) |  |  | 30.00") == 2
    assert "1 of the other domains per client" in out and "2 of the other domains" in out


def test_data_that_are_missing_end_the_command(command, monkeypatch, tmp_path):
    file = ROOT / "configs" / "hfedf_pacs.py"
    arguments = [f"--config={file}", f"--out={tmp_path}", "--methods=fedprox"]
    overrides = [f"--config.data.folder={tmp_path}", "--config.method.mu=0.5"]  # not fedavg's
    monkeypatch.setattr(sys, "argv", ["x", *arguments, *overrides])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert "no PACS in" in stop.value.code
