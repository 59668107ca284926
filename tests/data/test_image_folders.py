"""Folders of images, one for each domain and class, and a run on them."""

from functools import partial
from pathlib import Path

import broken
import numpy as np
import pytest
from image_files import check_listing
from inputs import complaint
from pacs import CLASSES, DOMAINS, SIZES, make_folders
from PIL import Image, ImageFile

import fedjax_lab
from fedjax_lab.data import places
from fedjax_lab.data.formats import images, layouts
from fedjax_lab.data.sources import image_folders
from fedjax_lab.data.sources.image_table import image_table
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import load_data


def by_hand(path, size=32):
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
    check_listing(image_folders.pacs, folder=str(pacs), size=16)
    check_listing(image_folders.image_folders, folder=str(pacs / "kfold"))


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


OFFICE = ("Art", "Clipart", "Product", "Real World")
VLCS = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
ALIASES = [  # (data source, folder, folders of the domains, domains)
    ("pacs", "PACS/kfold", ("art painting", "Cartoon", "photo", "sketch"), DOMAINS),
    ("vlcs", "VLCS", VLCS, VLCS),
    ("office_home", "office_home", OFFICE, OFFICE),
    ("office_home", "officehome", (*OFFICE[:3], "RealWorld"), OFFICE),
]


@pytest.mark.parametrize("name, inside, folders, domains", ALIASES)
def test_folders_may_have_aliases(
    name, inside, folders, domains, tmp_path, empty_cache, monkeypatch
):
    source = registry.look_up("data", name)
    make_folders(tmp_path / inside, folders, ("a", "b"), (1, 2, 1, 1))
    data = source(folder=str(tmp_path), size=8)
    assert data.domains == domains
    assert np.bincount(data.domain).tolist() == [2, 4, 2, 2]
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    assert np.array_equal(source(size=8).x, data.x)


def test_an_error_says_which_folder_or_images_are_missing(pacs, empty_cache):
    assert str(pacs) in complaint(image_folders.vlcs, folder=str(pacs))
    root = pacs / "kfold"
    load = partial(image_folders.pacs, folder=str(pacs))
    for path in (root / "cartoon" / "horse").iterdir():
        path.unlink()
    assert complaint(load).startswith(f"{root / 'cartoon' / 'horse'} has no images (.jpg, .jpeg")
    (root / "sketch").rename(root / "drawings")
    assert f"{root} has no folder sketch" in complaint(load)


def test_a_user_defined_data_set_or_what_it_lacks(tmp_path, empty_cache):
    message = complaint(image_folders.image_folders, folder=str(tmp_path / "nothing"))
    assert "is not a folder" in message and "DOMAIN/CLASS/IMAGE" in message
    load = partial(image_folders.image_folders, folder=str(tmp_path / "own"), size=8)
    (tmp_path / "own" / ".git").mkdir(parents=True)
    assert "no folders of domains" in complaint(load)
    (tmp_path / "own" / "a").mkdir()
    assert "no folders of classes" in complaint(load)
    (tmp_path / "own" / "a").rmdir()
    message = complaint(resolve, {"data": {"name": "image_folders"}})
    assert "needs config.data.folder" in message
    make_folders(tmp_path / "own", ("z", "b"), ("two", "one"), (1, 2))
    data = load()
    assert (data.domains, data.classes) == (("b", "z"), ("one", "two"))


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def fill(root, *names):
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
    "class": ("a/0.png", "b/1.png"),
    "split/class": ("train/a/0.png", "train/b/1.png", "test/b/2.png"),
    "domain/split/class": ("x/Training/a/0.png", "y/Training/a/1.png", "y/Testing/a/2.png"),
    "split/domain/class": ("train/x/a/0.png", "train/y/a/1.png", "test/x/a/2.png"),
    "domain/class": ("x/a/0.png", "y/a/1.png"),
    "client/class": ("ann/a/0.png", "bob/b/1.png"),
    "split/client/class": ("train/ann/a/0.png", "train/bob/b/1.png", "test/bob/b/2.png"),
}


def expected(layout, file):
    *names, _ = file.split("/")
    of = dict(zip(layout.split("/"), names, strict=True))
    test = of.get("split", "").lower().startswith("test")
    return "test" if test else "train", of.get("domain", ALONE), of["class"], of.get("client", "")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_read_and_those_without_clients_are_recognized(layout, own, empty_cache):
    fill(own, *LAYOUTS[layout])
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    data = load(layout=layout)
    files = LAYOUTS[layout]
    assert described(data) == {Path(file).name: expected(layout, file) for file in files}
    assert data.x[:, 0, 0, 0].tolist() == [int(Path(file).stem) for file in data.files]
    if "client" not in layout:  # clients cannot be recognized
        assert described(load()) == described(data)


def test_other_folders_and_validation_images_next_to_the_splits(own, empty_cache):
    """Validation images are test images if there are no others, and else left out."""
    fill(own, "train/a/0.png", "valid/a/1.png")
    (own / "annotations" / "boxes").mkdir(parents=True)
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    assert load().test.tolist() == [False, True]
    fill(own, "test/a/2.png")
    data = load()
    assert data.test.tolist() == [False, False, True]
    assert [Path(file).name for file in data.files] == ["0.png", "1.png", "2.png"]


def test_a_class_may_have_the_name_of_a_split(own, empty_cache):
    fill(own, "bus/0.png", "train/1.png")
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    assert load().classes == ("bus", "train")
    fill(own, "test/2.png")
    assert load(layout="class").classes == ("bus", "test", "train")


AMBIGUOUS = [  # (files, layout, words of the error)
    (("a/0.png", "b/c/1.png"), "auto", "has images in a and in b/c; specify the layout"),
    (("x/y/a/0.png",), "auto", "not clear what the folders x/y/a stand for"),
    (("test/a/0.png",), "auto", "there are no training images"),
    (("train/a/0.png", "test/a/1.png", "dev/a/2.png"), "auto", "'dev' beside it is none of"),
    (("train/a/0.png", "test/b/0.png"), "auto", "/train/b has no images (.jpg, .jpeg"),
    (("x/a/0.png",), "split/class", "'x' is not one of the splits train, training"),
    (("a/0.png",), "class/domain", "config.data.layout cannot be 'class/domain'"),
    (LAYOUTS["client/class"], "auto", "/ann/b has no images"),  # a domain lacks a class
]


def test_folders_without_test_images_give_a_fifth_of_each_class(own, empty_cache):
    fill(own, *(f"{name}/{i}.png" for name in ("a", "b") for i in range(10)))
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    data = load()
    assert np.bincount(data.y[data.test]).tolist() == [2, 2] and data.test_is_drawn
    assert np.array_equal(data.test, load().test)
    section = {"name": "image_folders", "folder": str(own), "size": 8}
    for share, count in ((0.0, 4), (0.4, 8)):  # of data.test, which replaces the draw
        drawn = load_data(resolve({"data": {**section, "test": share}}).data)
        assert drawn.test.sum() == count
        assert len(drawn.remarks) == 1 and f"{count} of 20 examples" in drawn.remarks[0]
    assert not load(unseen="x").test.any()  # then the unseen domain is the test set


@pytest.mark.parametrize("names, layout, message", AMBIGUOUS, ids=range(len(AMBIGUOUS)))
def test_ambiguous_or_invalid_layouts_are_errors(names, layout, message, own, empty_cache):
    fill(own, *names)
    load = partial(image_folders.image_folders, folder=str(own), size=8)
    assert message in complaint(load, layout=layout)


def test_all_usual_file_extensions_are_read(own, empty_cache):
    names = [f"a/{i}{ending}" for i, ending in enumerate((*layouts.ENDINGS, ".PNG"))]
    fill(own, *(name for name in names if not name.endswith(".pgm")))
    Image.new("L", (12, 8)).save(own / "a" / "5.pgm")
    (own / "a" / "Thumbs.db").touch()
    data = image_folders.image_folders(folder=str(own), size=8)
    assert len(data.files) == len(names)


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
    assert "data.color cannot be 'grey'; did you mean 'gray'" in complaint(load, color="grey")
    assert "config.data.resize cannot be 'fit'" in complaint(load, resize="fit")


def test_very_wide_images_can_be_padded_and_deep_ones_are_rejected(own, empty_cache):
    (own / "a").mkdir()
    load = partial(image_folders.image_folders, folder=str(own), size=8, resize="pad")
    Image.new("RGB", (400, 1), (255, 0, 0)).save(own / "a" / "0.png")
    red = load().x[0, :, :, 0]
    assert red.shape == (8, 8) and (red > 0).any(1).sum() == 1  # one row of pixels remains
    Image.fromarray(np.full((8, 8), 3000, np.uint16)).save(own / "a" / "0.png")
    broken.check(load, own / "a" / "0.png", "is not supported; save it with 8 bits")


@pytest.mark.slow
def test_a_run_without_test_examples_reports_id_and_ood(pacs, empty_cache):
    """`id` is of validation examples, `ood` of the whole unseen domain; `accuracy` is absent."""
    config = {
        "data": {"name": "pacs", "folder": str(pacs), "size": 8, "unseen": "photo"},
        "partition": {"name": "domains_per_client", "num_clients": 2, "domains": 2},
        "model": {"name": "mlp", "width": 4},
        "local": {"batch_size": 8, "lr": 0.1},
        "run": {"rounds": 2, "eval_every": 1},
    }
    config["partition"]["validation"] = 0.2
    result = fedjax_lab.run(config, seeds=[0], quiet=True)
    for row in result.metrics:
        assert not {"accuracy", "domains", "global"} & set(row)
        for name in ("id", "ood"):
            assert len(row[f"{name}_per_client"]) == 2
            assert np.mean(row[f"{name}_per_client"]) == pytest.approx(row[name])
        right = np.array(row["ood_per_client"]) * 11 / 100  # of 3 * 3 + 2 images
        assert right == pytest.approx(right.round(), abs=1e-4)
    last = result.summary["last"]["mean"]
    assert {"id", "ood"} <= set(last) and not {"accuracy", "global"} & set(last)


ISIC = {"label": "target", "client": "center", "split": "fold"}  # columns of Fed-ISIC2019
LINES = [  # image, target, center, fold, fold2
    ("ISIC_0", 10, 5, "train", "train_5"),
    ("ISIC_1", 2, 0, "train", "train_0"),
    ("ISIC_2", 2, 5, "test", "test_5"),
    ("ISIC_3", 2, 5, "train", "train_5"),
]


@pytest.fixture
def isic(tmp_path, empty_cache):
    """A table in FLamby's format, and the folder with its images: (table, folder)."""
    folder = tmp_path / "set" / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir(parents=True)
    for number, (name, *_) in enumerate(LINES):
        Image.new("RGB", (10, 8), (0, number, 0)).save(folder / f"{name}.png")
    write_table(tmp_path / "set" / "train_test_split", LINES)
    return tmp_path / "set" / "train_test_split", folder


def write_table(table, lines, header="image,target,center,fold,fold2", delimiter=","):
    lines = [header.replace(",", delimiter), *(delimiter.join(map(str, line)) for line in lines)]
    table.write_text("".join(f"{line}\n" for line in lines))


def load_table(isic, **settings):
    table, folder = isic
    return image_table(path=str(table), folder=str(folder), **{"size": 8, **ISIC, **settings})


def test_a_table_gives_labels_clients_and_the_split(isic):
    data = load_table(isic)
    assert (data.classes, data.users, data.domains) == (("2", "10"), ("0", "5"), ("image_table",))
    assert [Path(file).stem[-1] for file in data.files] == ["0", "3", "1", "2"]
    assert data.x.shape == (4, 8, 8, 3) and data.x[:, 0, 0, 1].tolist() == [0, 3, 1, 2]
    assert data.y.tolist() == [1, 0, 0, 0] and data.test.tolist() == [False] * 3 + [True]
    assert data.client.dtype == np.int32 and data.client.tolist() == [1, 1, 0, 1]
    again = load_table(isic)  # from the cache
    assert again.users == data.users and again.client.tolist() == data.client.tolist()
    by_domain = load_table(isic, domain="center", client="", split="")
    assert by_domain.domains == ("0", "5") and by_domain.domain.tolist() == [0, 1, 1, 1]
    table, folder = isic
    check_listing(image_table, path=str(table), folder=str(folder), **ISIC)


def test_images_of_a_patient_have_one_origin(isic):
    made = load_table(isic, split="", group="center")
    assert made.origin.tolist() == made.client.tolist()
    table, folder = isic
    write_table(table, [*LINES, ("ISIC_0.png", 1, 5 - LINES[0][2], "train", "")])
    assert "but an image has only one split and one group" in complaint(
        load_table, isic, client="", group="center"
    )


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_other_delimiters_and_file_names_with_extensions_are_read(isic, delimiter):
    table, folder = isic
    lines = [(f'"{folder / name}.png"', *rest) for name, *rest in LINES]
    write_table(table, lines, delimiter=delimiter)
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes().replace(b"\n", b"\r\n"))
    assert load_table((table, "")).y.tolist() == [1, 0, 0, 0]


def test_an_error_says_what_is_wrong_with_a_table(isic):
    table, folder = isic
    error = partial(complaint, load_table, isic)
    settings = {  # {words of the error: settings}
        "has no column 'label' (config.data.label)": {"label": "label"},
        "'centre' (config.data.client); did you mean 'center'": {"client": "centre"},
        "'train_5' is not one of the splits train, training, test": {"split": "fold2"},
    }
    for said, setting in settings.items():
        assert said in error(**setting)
    more = {  # {words of the error: one more line}
        f"there is no image {folder / 'ISIC_9'} (.jpg": ("ISIC_9", 0, 0, "train", ""),
        f"{table}: line 6 has no 'target'": ("ISIC_0", "", 0, "train", ""),
        "for train and test, but an image has only": ("ISIC_0.png", 1, 0, "test", ""),
    }
    for said, line in more.items():
        write_table(table, [*LINES, line])
        assert said in error()
    write_table(table, LINES, "image,target,target,center,fold")
    assert "has two columns 'target' (config.data.label)" in error()
    write_table(table, [("ISIC_0", 1, 0, "test", "")])
    assert "there are no training images" in error()
    write_table(table, [])
    assert "lists no images" in error()
    assert "data.path is empty" in complaint(image_table, path="")
