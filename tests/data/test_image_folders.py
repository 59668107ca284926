"""Folders of images, one for each domain and class, and a run on them."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from image_files import check_listing
from inputs import complaint
from pacs import CLASSES, DOMAINS, SIZES, make_folders
from PIL import Image, ImageFile

import fedjax_lab
from fedjax_lab import experiment, registry
from fedjax_lab.config import resolve
from fedjax_lab.data import image_folders, images, layouts, places

# Folders


def by_hand(path, size=32):
    """The image that the source must return for a file."""
    image = Image.open(path).convert("RGB")
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


def files_in_order(root):
    return [
        path
        for domain in DOMAINS
        for name in CLASSES
        for path in sorted((root / domain / name).glob("pic_*"))
    ]


def test_images_classes_and_domains_are_read_from_folders(pacs, empty_cache):
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
    gray = data.x[data.domain == 3]
    assert np.array_equal(gray[..., 0], gray[..., 1]) and np.array_equal(gray[..., 0], gray[..., 2])


def test_images_can_be_listed_without_decoding(pacs, empty_cache):
    """This includes an image whose file is truncated."""
    file = pacs / "kfold" / "photo" / "dog" / "pic_000.JPG"
    file.write_bytes(file.read_bytes()[:-80])
    check_listing(image_folders.pacs, folder=str(pacs), size=16)
    check_listing(image_folders.image_folders, folder=str(pacs / "kfold"))
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_an_image_is_shrunk_with_antialiasing(tmp_path, empty_cache):
    """Lines of single pixels become even gray; without a filter some would stay."""
    for domain in "ab":
        folder = tmp_path / "own" / domain / "one"
        folder.mkdir(parents=True)
        lines = np.zeros((64, 64, 3), np.uint8)
        lines[::2] = 255
        Image.fromarray(lines).save(folder / "lines.png")
    data = image_folders.image_folders(folder=str(tmp_path / "own"), size=8)
    assert data.x.shape == (2, 8, 8, 3)
    assert np.abs(data.x.astype(int) - 127).max() <= 12


def test_truncated_images_are_read_as_far_as_they_go(pacs, empty_cache):
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
def test_a_file_that_is_not_an_image_is_an_error(content, pacs, empty_cache):
    file = pacs / "kfold" / "photo" / "horse" / "pic_001.JPG"
    file.write_bytes(content)
    message = complaint(image_folders.pacs, folder=str(pacs))
    assert message.startswith(f"{file} is damaged or not an image") and "domainbed" in message
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False and not empty_cache.exists()


def test_images_are_decoded_once_until_a_file_or_the_size_changes(pacs, empty_cache, monkeypatch):
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
    assert len(list(empty_cache.iterdir())) == 3


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
def test_folders_may_have_aliases(
    name, inside, folders, domains, tmp_path, empty_cache, monkeypatch
):
    source = registry.NAMED["data"][name]
    make_folders(tmp_path / inside, folders, ("a", "b"), (1, 2, 1, 1))
    data = source(folder=str(tmp_path), size=8)
    assert data.domains == (domains or folders)
    assert np.bincount(data.domain).tolist() == [2, 4, 2, 2]
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    assert np.array_equal(source(size=8).x, data.x)


def test_a_user_defined_data_set(tmp_path, empty_cache):
    make_folders(tmp_path / "own", ("z", "b"), ("two", "one"), (1, 2))
    (tmp_path / "own" / ".git").mkdir()
    data = image_folders.image_folders(folder=str(tmp_path / "own"), size=8)
    assert (data.domains, data.classes) == (("b", "z"), ("one", "two"))
    assert data.domain.tolist() == [0] * 4 + [1] * 2 and data.y.tolist() == [0, 0, 1, 1, 0, 1]


def test_an_error_says_which_folder_or_images_are_missing(pacs, empty_cache, monkeypatch):
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
    assert "must be from 8 to 512 pixels, got 7" in complaint(load, size=7)
    for path in (root / "cartoon" / "horse").iterdir():
        path.unlink()
    assert complaint(load).startswith(f"{root / 'cartoon' / 'horse'} has no images (.jpg, .jpeg")
    (root / "cartoon" / "horse").rmdir()
    assert complaint(load).startswith(f"{root / 'cartoon' / 'horse'} has no images")
    (root / "sketch").rename(root / "drawings")
    assert f"{root} has no folder sketch" in complaint(load)


def test_an_error_says_what_is_wrong_with_a_user_defined_data_set(tmp_path, empty_cache):
    for folder in ("", str(tmp_path / "nothing")):
        message = complaint(image_folders.image_folders, folder=folder)
        assert "is not a folder" in message and "DOMAIN/CLASS/IMAGE" in message
    assert "no folders of domains" in complaint(image_folders.image_folders, folder=str(tmp_path))
    (tmp_path / "a").mkdir()
    assert "no folders of classes" in complaint(image_folders.image_folders, folder=str(tmp_path))
    message = complaint(resolve, {"data": {"name": "image_folders"}})
    assert "needs config.data.folder" in message


# Layouts


@pytest.fixture
def own(tmp_path):
    """An empty folder for a user-defined data set."""
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def fill(root, *names):
    """Writes these images, each in a different color."""
    for number, name in enumerate(names):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 8), (number, 0, 0)).save(file)


def described(data):
    """{file name: (split, domain, class, user)}; the user is empty if there are no clients."""
    users = [""] * len(data.y) if data.client is None else [data.users[i] for i in data.client]
    rows = zip(data.files, data.test, data.domain, data.y, users, strict=True)
    return {
        file.rsplit("/", 1)[1]: ("test" if test else "train", data.domains[d], data.classes[y], u)
        for file, test, d, y, u in rows
    }


ALONE = "image_folders"  # the name of the only domain
LAYOUTS = {
    "class": (
        ("a/0.png", "b/1.png"),
        [("train", ALONE, "a", ""), ("train", ALONE, "b", "")],
    ),
    "split/class": (
        ("train/a/0.png", "train/b/1.png", "test/b/2.png"),
        [("train", ALONE, "a", ""), ("train", ALONE, "b", ""), ("test", ALONE, "b", "")],
    ),
    "domain/split/class": (
        ("x/Training/a/0.png", "y/Training/a/1.png", "y/Testing/a/2.png"),
        [("train", "x", "a", ""), ("train", "y", "a", ""), ("test", "y", "a", "")],
    ),
    "split/domain/class": (
        ("train/x/a/0.png", "train/y/a/1.png", "test/x/a/2.png"),
        [("train", "x", "a", ""), ("train", "y", "a", ""), ("test", "x", "a", "")],
    ),
    "domain/class": (
        ("x/a/0.png", "y/a/1.png"),
        [("train", "x", "a", ""), ("train", "y", "a", "")],
    ),
    "client/class": (
        ("ann/a/0.png", "bob/b/1.png"),
        [("train", ALONE, "a", "ann"), ("train", ALONE, "b", "bob")],
    ),
    "split/client/class": (
        ("train/ann/a/0.png", "train/bob/b/1.png", "test/bob/b/2.png"),
        [("train", ALONE, "a", "ann"), ("train", ALONE, "b", "bob"), ("test", ALONE, "b", "bob")],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_read_and_those_without_clients_are_recognized(layout, own, empty_cache):
    names, expected = LAYOUTS[layout]
    fill(own, *names)
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    data = load(layout=layout)
    assert described(data) == {f"{i}.png": each for i, each in enumerate(expected)}
    assert data.x[:, 0, 0, 0].tolist() == [int(Path(file).stem) for file in data.files]
    if "client" not in layout:  # clients cannot be recognized
        assert described(load()) == described(data)


def test_other_folders_next_to_the_splits_are_ignored(own, empty_cache):
    fill(own, *LAYOUTS["split/class"][0])
    (own / "annotations" / "boxes").mkdir(parents=True)
    data = image_folders.image_folders(folder=str(own), size=8)
    assert described(data)["2.png"] == ("test", ALONE, "b", "")


def test_a_class_may_have_the_name_of_a_split(own, empty_cache):
    fill(own, "bus/0.png", "train/1.png")
    assert image_folders.image_folders(folder=str(own), size=8).classes == ("bus", "train")
    fill(own, "test/2.png")
    data = image_folders.image_folders(folder=str(own), size=8, layout="class")
    assert data.classes == ("bus", "test", "train")


def test_validation_images_are_test_images_if_there_are_no_others(own, empty_cache):
    fill(own, "train/a/0.png", "valid/a/1.png")
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    assert load().test.tolist() == [False, True]
    fill(own, "test/a/2.png")
    data = load()
    assert data.test.tolist() == [False, False, True]
    assert [Path(file).name for file in data.files] == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize(
    ("names", "layout", "message"),
    [
        (("a/0.png", "b/c/1.png"), "auto", "has images in a and in b/c; specify the layout"),
        (("x/y/a/0.png",), "auto", "not clear what the folders x/y/a stand for"),
        (("train/0.png",), "auto", "not clear what the folders train stand for"),
        (("x/train/0.png",), "auto", "not clear what the folders x/train stand for"),
        (("test/a/0.png",), "auto", "there are no training images"),
        (("train/a/0.png", "test/a/1.png", "dev/a/2.png"), "auto", "'dev' beside it is none of"),
        (
            ("x/train/a/0.png", "x/extra/a/1.png"),
            "auto",
            "train is named like a split, but 'extra'",
        ),
        (("train/a/0.png", "test/b/0.png"), "auto", "/train/b has no images (.jpg, .jpeg"),
        (("x/a/0.png",), "split/class", "'x' is not one of the splits train, training"),
        (("a/0.png",), "class/domain", "config.data.layout cannot be 'class/domain'"),
        (("a/0.png",), "folder/class", "config.data.layout cannot be 'folder/class'"),
    ],
)
def test_ambiguous_or_invalid_layouts_are_errors(names, layout, message, own, empty_cache):
    fill(own, *names)
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    assert message in complaint(load, layout=layout)


def test_a_domain_that_lacks_a_class_is_an_error(own, empty_cache):
    fill(own, *LAYOUTS["client/class"][0])
    message = complaint(image_folders.image_folders, folder=str(own))
    assert message.startswith(f"{own / 'ann' / 'b'} has no images")


def test_all_usual_file_extensions_are_read(own, empty_cache):
    names = [f"a/{i}{ending}" for i, ending in enumerate((*layouts.ENDINGS, ".PNG"))]
    fill(own, *(name for name in names if not name.endswith(".pgm")))
    Image.new("L", (12, 8)).save(own / "a" / "5.pgm")
    (own / "a" / "Thumbs.db").touch()
    data = image_folders.image_folders(folder=str(own), size=8)
    assert len(data.files) == len(names)


def test_uncompressed_images_are_read_again_after_a_change(own, empty_cache):
    fill(own, "a/0.ppm")
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    assert load().x.max() == 0
    file = own / "a" / "0.ppm"
    before = file.stat()
    Image.new("RGB", (12, 8), (9, 9, 9)).save(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert file.stat().st_size == before.st_size and load().x.min() == 9


# Colors and squares


def test_images_are_converted_to_gray_and_to_squares(own, empty_cache):
    """The image is wide: red at the left, white in the middle, blue at the right."""
    pixels = np.zeros((8, 24, 3), np.uint8)
    pixels[:, :8], pixels[:, 8:16], pixels[:, 16:] = (255, 0, 0), 255, (0, 0, 255)
    (own / "a").mkdir()
    Image.fromarray(pixels).save(own / "a" / "0.png")
    load = partial(image_folders.image_folders, folder=str(own), size=24)
    cropped = load(resize="crop", color="gray").x
    assert cropped.shape == (1, 24, 24, 1) and (cropped[:, :, 3:-3] == 255).all()
    padded = load(resize="pad").x[0]
    assert np.array_equal(padded[8:16], pixels)
    assert not padded[:8].any() and not padded[16:].any()
    assert np.array_equal(load().x[0, 20], pixels[0])  # stretched, the default
    assert load(color="gray").x[0, 0, 0].tolist() == [76]  # 0.299 of 255
    assert "config.data.color cannot be 'grey'; did you mean 'gray'" in complaint(
        load, color="grey"
    )
    assert "config.data.resize cannot be 'fit'" in complaint(load, resize="fit")


def test_a_very_wide_image_can_be_padded(own, empty_cache):
    (own / "a").mkdir()
    Image.new("RGB", (400, 1), (255, 0, 0)).save(own / "a" / "0.png")
    data = image_folders.image_folders(folder=str(own), size=8, resize="pad")
    assert data.x.shape == (1, 8, 8, 3)


def test_images_of_more_than_8_bits_are_rejected(own, empty_cache):
    (own / "a").mkdir()
    Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(own / "a" / "0.png")
    message = complaint(image_folders.image_folders, folder=str(own), size=8)
    assert message.startswith(f"{own / 'a' / '0.png'}") and "more than 8 bits" in message


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


@pytest.mark.slow
def test_a_run_without_test_examples_reports_id_and_ood(pacs, empty_cache, tmp_path, capsys):
    """`id` is of validation examples, `ood` of the whole unseen domain; `accuracy` is absent."""
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


def test_clients_hold_all_examples_outside_of_the_unseen_domain(pacs, empty_cache):
    resolved = resolve(config(pacs, unseen="photo"))
    data = experiment.load_data(resolved.data)
    (federation,) = experiment.deal_dataset(resolved, data, [0])
    assert federation.test is None and federation.global_test is None
    assert np.array_equal(federation.unseen, np.flatnonzero(data.domain == 2))
    rows = [np.asarray(a) for a in (federation.train, federation.validation)]
    held = np.concatenate([a[a >= 0] for a in rows])
    assert np.array_equal(np.sort(held), np.flatnonzero(data.domain != 2))
    domains = [set(data.domain[r[r >= 0]]) for r in rows[0]]
    assert domains == [{0, 3}, {1, 3}]  # d=2: sketch, the largest, is cut in two


def test_a_run_with_nothing_to_score_is_rejected(pacs, empty_cache):
    plain = config(pacs)
    plain["partition"]["validation"] = 0.0
    message = complaint(experiment.build, resolve(plain))
    assert "nothing to score" in message and "data.unseen" in message
    message = complaint(experiment.build, resolve(config(pacs, unseen="fotos")))
    assert "photo" in message
