"""Office-Caltech-10 and DomainNet: small data sets in the original formats."""

import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
from domain_files import naive_resize, write
from image_files import check_listing
from inputs import complaint
from PIL import Image

from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.data import domainnet, images, office_caltech
from fedjax_lab.data import places as places_module
from fedjax_lab.registry import NAMED


@pytest.fixture
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places_module, "PLACES", ("/nowhere/a", "/nowhere/b"))


def test_sources_are_registered_under_their_names():
    for name in ("digits_five", "office_caltech", "domainnet"):
        assert NAMED["data"][name].__name__ == name


def test_the_office_config_of_fedc2i_has_the_papers_settings():
    def config(name):
        return resolve(load_config(str(Path(__file__).parents[2] / "configs" / name)))

    office = config("fedc2i_office.py")
    assert (office.data.size, office.data.sampling, office.data.normalize) == (64, "fedc2i", "unit")
    assert (office.run.rounds, office.local.epochs, office.local.optimizer) == (40, 2, "adam")
    assert office.partition.num_clients == len(office_caltech.RELEASE.domains) == 4


# Office-Caltech-10 and DomainNet

SETS = {
    "office_caltech": (office_caltech.office_caltech, office_caltech.RELEASE),
    "domainnet": (domainnet.domainnet, domainnet.RELEASE),
}


SIDE = 24


IN_LISTS = [(3, "train"), (0, "test"), (3, "train"), (9, "train"), (0, "train"), (9, "test")]


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, channels)).astype(np.uint8)
    return Image.fromarray(pixels if channels > 1 else pixels[..., 0], mode)


def path_of(release, domain: str, number: int) -> str:
    return f"{domain}/{release.classes[IN_LISTS[number][0]]}/frame_{number:04d}.png"


def make_set(release, folder: Path, lead: bool = True, protocol: int = 4, kind=list, lists="."):
    """Writes six files per domain, and lists; `lead`: paths begin with the data set's folder."""
    for seed, domain in enumerate(release.domains):
        for number in range(len(IN_LISTS)):
            file = folder / path_of(release, domain, number)
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(100 * seed + number).save(file)
        for part in ("train", "test"):
            rows = [n for n, (_, where) in enumerate(IN_LISTS) if where == part]
            head = f"{release.folder}/" if lead else ""
            paths = [head + path_of(release, domain, n) for n in rows]
            names = [release.classes[IN_LISTS[n][0]] for n in rows]
            write(folder / lists / f"{domain}_{part}.pkl", (kind(paths), kind(names)), protocol)
    return folder


def check_set(data, release):
    assert data.domains == release.domains and data.classes == release.classes
    row = 0
    for test, part in enumerate(("train", "test")):
        for seed in range(len(release.domains)):
            for number, (label, where) in enumerate(IN_LISTS):
                if where == part:
                    assert np.array_equal(data.x[row], np.asarray(picture(100 * seed + number)))
                    actual = (int(data.y[row]), int(data.domain[row]), bool(data.test[row]))
                    assert actual == (label, seed, bool(test))
                    assert data.files[row].endswith(path_of(release, release.domains[seed], number))
                    row += 1
    assert row == len(data.x) == len(data.y) == len(data.files) and data.x.dtype == np.uint8


def texts(values: list[str]) -> np.ndarray:
    return np.array(values)


def raw(values: list[str]) -> np.ndarray:
    return np.array(values, "S")


def objects(values: list[str]) -> np.ndarray:
    return np.array(values, object)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("kind", [list, tuple, texts, raw, objects])
@pytest.mark.parametrize("name", SETS)
def test_lists_are_read_from_all_kinds_of_pickles(name, kind, protocol, tmp_path, empty_cache):
    source, release = SETS[name]
    make_set(release, tmp_path, protocol=protocol, kind=kind)
    check_set(source(folder=str(tmp_path), size=SIDE), release)


@pytest.mark.parametrize("where", ["parent", "usual place", "split", "no leading folder"])
@pytest.mark.parametrize("name", SETS)
def test_folders_and_lists_are_found_in_all_places(name, where, tmp_path, empty_cache, monkeypatch):
    source, release = SETS[name]
    monkeypatch.setattr(places_module, "PLACES", ("/nowhere", str(tmp_path)))
    lists = "split" if where == "split" else "."
    make_set(release, tmp_path / release.folder, where != "no leading folder", lists=lists)
    folder = "" if where == "usual place" else str(tmp_path)
    check_set(source(folder=folder, size=SIDE), release)


def test_both_columns_of_a_list_may_be_in_one_array(tmp_path, empty_cache):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path)
    for file in tmp_path.glob("*.pkl"):
        write(file, np.array(pickle.loads(file.read_bytes())))
    check_set(source(folder=str(tmp_path), size=SIDE), release)


def long_lists(release, folder: Path, counts: dict[str, list[int]]):
    """Writes one file per class; the lists repeat it as often as the domain's `counts` say."""
    for domain in release.domains:
        paths = {c: f"{release.folder}/{domain}/{c}/0.png" for c in release.classes}
        for seed, name in enumerate(release.classes):
            file = folder / domain / name / "0.png"
            file.parent.mkdir(parents=True)
            picture(seed).save(file)
        names = [n for c, n in zip(counts[domain], release.classes, strict=True) for _ in range(c)]
        for part, shown in (("train", names[::-1]), ("test", names[:30])):
            write(folder / f"{domain}_{part}.pkl", ([paths[n] for n in shown], shown))


def test_office_samplings_have_the_papers_counts(tmp_path, empty_cache):
    """The counts of FedBN's split: FedC2I's Table 6 has 200, 200, 125 and 197 images."""
    source, release = SETS["office_caltech"]
    counts = {
        "amazon": [76] * 9 + [82],
        "caltech": [90] * 9 + [88],
        "dslr": [12] * 9 + [17],
        "webcam": [24] * 9 + [17],
    }
    long_lists(release, tmp_path, counts)
    taken = {}
    for sampling in ("fedpick", "fedc2i"):
        data = source(folder=str(tmp_path), size=8, sampling=sampling)
        taken[sampling] = np.bincount(data.domain[~data.test]).tolist()
        assert np.bincount(data.domain[data.test]).tolist() == [30] * 4
    assert taken == {"fedpick": [125] * 4, "fedc2i": [200, 200, 125, 197]}
    amazon = data.y[(data.domain == 0) & ~data.test]
    assert amazon.tolist() == sorted(list(range(10)) * 20)[::-1]
    first = source(folder=str(tmp_path), size=8).y[:125]
    assert first.tolist() == [9] * 82 + [8] * 43
    assert len(list(empty_cache.iterdir())) == 2


def test_domainnet_uses_the_first_500_training_images_per_domain(tmp_path, empty_cache):
    source, release = SETS["domainnet"]
    long_lists(release, tmp_path, {domain: [51] * 10 for domain in release.domains})
    data = source(folder=str(tmp_path), size=8)
    assert np.bincount(data.domain[~data.test]).tolist() == [500] * 6
    assert data.y[:500].tolist() == sorted(list(range(10)) * 51)[::-1][:500]


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK"])
def test_images_without_three_channels_become_gray(mode, tmp_path, empty_cache):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path)
    file = tmp_path / path_of(release, "amazon", 0)
    image = picture(5).convert("P") if mode == "P" else picture(5, mode)
    image.save(file, "JPEG" if mode == "CMYK" else "PNG", quality=100)
    with Image.open(file) as opened:
        assert opened.mode == mode
        expected = np.asarray(opened.convert("L"))
    made = source(folder=str(tmp_path), size=SIDE).x[0]
    for channel in range(3):
        assert np.array_equal(made[..., channel], expected)


def test_images_are_resized_with_antialiasing(tmp_path, empty_cache):
    source, release = SETS["domainnet"]
    make_set(release, tmp_path)
    for size in (12, 40):
        made = source(folder=str(tmp_path), size=size).x[0]
        assert np.abs(made - naive_resize(np.asarray(picture(0)), size)).max() < 1.6
    half = np.asarray(picture(0))[:, :12]  # not square: the sides have different factors
    Image.fromarray(half).save(tmp_path / path_of(release, "clipart", 0))
    made = source(folder=str(tmp_path), size=16).x[0]
    assert np.abs(made - naive_resize(half, 16)).max() < 1.6


@pytest.mark.parametrize("name", SETS)
def test_images_can_be_listed_without_decoding(name, tmp_path, empty_cache):
    source, release = SETS[name]
    make_set(release, tmp_path)
    check_listing(source, folder=str(tmp_path), size=8)


def test_images_are_decoded_once_until_a_file_or_list_changes(tmp_path, empty_cache, monkeypatch):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path)
    calls, decode = [], images.decode
    monkeypatch.setattr(images, "decode", lambda *a: calls.append(a) or decode(*a))
    first = source(folder=str(tmp_path), size=SIDE)
    again = source(folder=str(tmp_path), size=SIDE)
    assert len(calls) == 1 and all(map(np.array_equal, first, again))
    check_set(again, release)
    source(folder=str(tmp_path), size=8)
    assert len(calls) == 2
    file = tmp_path / path_of(release, "webcam", 5)
    file.write_bytes(file.read_bytes() + b"\0")
    source(folder=str(tmp_path), size=SIDE)
    assert len(calls) == 3
    lists = tmp_path / "dslr_train.pkl"
    paths, names = pickle.loads(lists.read_bytes())
    write(lists, (paths[::-1], names[::-1]))
    data = source(folder=str(tmp_path), size=SIDE)
    assert len(calls) == 4 and data.y[(data.domain == 2) & ~data.test].tolist() == [0, 9, 3, 3]
    assert len(list(empty_cache.iterdir())) == 4


OUTSIDE = [
    "/etc/passwd",
    "../secret.png",
    "office_caltech_10/../../secret.png",
    "amazon/back_pack/../../../secret.png",
    "amazon/..",
    "amazon/a\0.png",
    "amazon/a\n.png",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_leave_the_folder_are_not_opened(path, tmp_path, empty_cache, monkeypatch):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path / "office_caltech_10")
    picture(0).save(tmp_path / "secret.png")
    file = tmp_path / "office_caltech_10" / "amazon_test.pkl"
    write(file, ([path], ["mug"]))
    opened = []
    monkeypatch.setattr(images, "decode", lambda *a: opened.append(a))
    message = complaint(source, folder=str(tmp_path))
    assert message.startswith(str(file)) and "is not in the data set's folder" in message
    assert not opened and not empty_cache.exists()


BROKEN_LISTS = {
    "missing": (None, "cannot be read"),
    "hostile": (print, "it refers to builtins.print"),
    "number": (3, "is not a pair"),
    "one column": ((["a"],), "is not a pair"),
    "lengths": ((["a", "b"], ["mug"]), "is not a pair"),
    "numbers": ((["a"], [3]), "is not a pair"),
    "text": (("a", "b"), "is not a pair"),
    "dictionary": ({"a": "mug"}, "is not a pair"),
    "empty": (([], []), "is empty"),
    "class": ((["a.png"], ["mugs\n"]), "'mugs\\n' is not a class of office_caltech_10"),
}


@pytest.mark.parametrize("case", BROKEN_LISTS)
def test_an_error_says_what_is_wrong_with_a_list(case, tmp_path, empty_cache):
    source, release = SETS["office_caltech"]
    content, expected = BROKEN_LISTS[case]
    file = make_set(release, tmp_path) / "dslr_test.pkl"
    file.unlink()
    if content is not None:
        write(file, content)
    message = complaint(source, folder=str(tmp_path))
    assert message.startswith(str(file)) and expected in message and "med-air/FedBN" in message
    assert not empty_cache.exists()


def damage(file: Path, how: str):
    content = file.read_bytes()
    file.unlink()
    if how == "a folder":
        file.mkdir()
    elif how != "missing":
        file.write_bytes({"cut": content[:-100], "empty": b"", "no image": b"<html>"}[how])


@pytest.mark.parametrize("how", ["missing", "cut", "empty", "no image", "a folder"])
@pytest.mark.parametrize("name", SETS)
def test_a_missing_or_damaged_image_is_an_error(name, how, tmp_path, empty_cache):
    source, release = SETS[name]
    make_set(release, tmp_path)
    file = tmp_path / path_of(release, release.domains[1], 2)
    damage(file, how)
    message = complaint(source, folder=str(tmp_path))
    expected = "cannot be read" if how == "missing" else "is damaged or not an image"
    assert message.startswith(str(file)) and expected in message and release.folder in message
    assert not empty_cache.exists()


@pytest.mark.parametrize("name", SETS)
def test_missing_data_sets_are_errors_with_instructions(
    name, tmp_path, nothing_in_the_usual_places
):
    source, release = SETS[name]
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(source, folder=folder)
        for part in (place, "https://github.com/med-air/FedBN", "data.folder", release.folder):
            assert part in message
        for domain in release.domains:
            assert f"{domain}/" in message
    assert "is not a folder" in complaint(source, folder=str(tmp_path / "none"))
    office = office_caltech.office_caltech
    assert "config.data.sampling" in complaint(office, folder=str(tmp_path), sampling="first")


# Without lists


def folders_only(release, folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Writes 2 files per class, 3 of the last; returns each domain's (file, label) in order."""
    made = {}
    for seed, domain in enumerate(release.domains):
        made[domain] = []
        for label, name in enumerate(release.classes):
            for number in range(3 if label == 9 else 2):
                file = folder / domain / name / f"{number}{('.png', '.JPG', '.jpeg')[number]}"
                file.parent.mkdir(parents=True, exist_ok=True)
                kind = "PNG" if number == 0 else "JPEG"
                picture(1000 * seed + 10 * label + number).save(file, kind)
                made[domain].append((str(file), label))
            (file.parent / ".DS_Store").write_bytes(b"\0")
        (folder / domain / "another_class").mkdir()
    return made


@pytest.mark.parametrize("name", SETS)
def test_without_lists_a_random_split_is_drawn_with_a_warning(name, tmp_path, empty_cache, caplog):
    source, release = SETS[name]
    files = folders_only(release, tmp_path)
    with caplog.at_level(logging.WARNING):
        data = source(folder=str(tmp_path), size=SIDE)
    assert "not comparable" in caplog.text and len(caplog.records) == 1
    row = 0
    for test in (False, True):
        for number, domain in enumerate(release.domains):
            order = np.random.default_rng(0).permutation(21)
            for at in order[:4] if test else order[4:]:
                file, label = files[domain][at]
                with Image.open(file) as image:
                    assert np.array_equal(data.x[row], np.asarray(image))
                actual = (int(data.y[row]), int(data.domain[row]), bool(data.test[row]))
                assert actual == (label, number, test)
                row += 1
    assert row == len(data.y)


def test_there_is_no_warning_with_lists(tmp_path, empty_cache, caplog):
    source, release = SETS["domainnet"]
    make_set(release, tmp_path)
    source(folder=str(tmp_path), size=8)
    assert not caplog.records


def test_a_class_without_images_is_an_error(tmp_path, empty_cache):
    source, release = SETS["domainnet"]
    folders_only(release, tmp_path)
    empty = tmp_path / "quickdraw" / "whale"
    for file in empty.iterdir():
        if file.suffix:
            file.unlink()
    assert complaint(source, folder=str(tmp_path)).startswith(f"{empty} has no images")
