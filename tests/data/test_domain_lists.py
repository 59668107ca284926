"""Office-Caltech-10 and DomainNet: small data sets in the original formats."""

import logging
import pickle
from functools import partial
from pathlib import Path

import broken
import numpy as np
import pytest
from domain_files import write
from image_files import check_listing
from inputs import complaint
from PIL import Image
from published import LISTED, write_published

from fedjax_lab.data import places
from fedjax_lab.data.formats import images
from fedjax_lab.data.sources import domainnet, office_caltech
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config


def test_the_office_config_of_fedc2i_has_the_papers_settings():
    office = resolve(load_config("fedc2i_office"))
    assert (office.data.size, office.data.sampling, office.data.normalize) == (64, "fedc2i", "unit")
    assert (office.run.rounds, office.local.epochs, office.local.optimizer) == (40, 2, "adam")
    assert office.partition.num_clients == len(office_caltech.RELEASE.domains) == 4


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
        for seed, domain in enumerate(release.domains):
            for number in (n for n, (_, where) in enumerate(IN_LISTS) if where == part):
                assert np.array_equal(data.x[row], np.asarray(picture(100 * seed + number)))
                actual = (data.y[row], data.domain[row], data.test[row])
                assert actual == (IN_LISTS[number][0], seed, test)
                assert data.files[row].endswith(path_of(release, domain, number))
                row += 1
    assert row == len(data.x) == len(data.y) == len(data.files) and data.x.dtype == np.uint8


KINDS = {"list": list, "raw": partial(np.array, dtype="S"), "objects": partial(np.array, dtype="O")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name, protocol", [("office_caltech", 4), ("domainnet", 2)])
def test_lists_are_read_from_all_kinds_of_pickles(name, kind, protocol, tmp_path, empty_cache):
    source, release = SETS[name]
    make_set(release, tmp_path, protocol=protocol, kind=KINDS[kind])
    check_set(source(folder=str(tmp_path), size=SIDE), release)
    if kind == "list":  # both columns may also be in one array
        for file in tmp_path.glob("*.pkl"):
            write(file, np.array(pickle.loads(file.read_bytes())))
        check_set(source(folder=str(tmp_path), size=SIDE), release)


@pytest.mark.parametrize("where", ["parent", "usual place", "split", "no leading folder"])
@pytest.mark.parametrize("name", SETS)
def test_folders_and_lists_are_found_in_all_places(
    name, where, tmp_path, empty_cache, monkeypatch, caplog
):
    source, release = SETS[name]
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    lists = "split" if where == "split" else "."
    make_set(release, tmp_path / release.folder, where != "no leading folder", lists=lists)
    folder = "" if where == "usual place" else str(tmp_path)
    check_set(source(folder=folder, size=SIDE), release)
    assert not caplog.records  # the warning is for data without lists
    check_listing(source, folder=folder, size=8)


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
    sizes = {"amazon": (76, 82), "caltech": (90, 88), "dslr": (12, 17), "webcam": (24, 17)}
    long_lists(release, tmp_path, {name: [n] * 9 + [last] for name, (n, last) in sizes.items()})
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
    assert "config.data.sampling" in complaint(source, folder=str(tmp_path), sampling="first")


def test_domainnet_uses_the_first_500_training_images_per_domain(tmp_path, empty_cache):
    source, release = SETS["domainnet"]
    long_lists(release, tmp_path, dict.fromkeys(release.domains, [51] * 10))
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


OUTSIDE = ["/etc/passwd", "office_caltech_10/../../secret.png", "amazon/..", "amazon/a\0.png"]


def test_paths_that_leave_the_folder_are_not_opened(tmp_path, empty_cache, monkeypatch):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path / "office_caltech_10")
    picture(0).save(tmp_path / "secret.png")
    file = tmp_path / "office_caltech_10" / "amazon_test.pkl"
    opened = []
    monkeypatch.setattr(images, "decode", lambda *a: opened.append(a))
    for path in OUTSIDE:
        write(file, ([path], ["mug"]))
        broken.check(source, file, "is not in the data set's folder", folder=str(tmp_path))
    assert not opened and not empty_cache.exists()


DAMAGED = [  # (what a list holds, words of the error)
    ((["a", "b"], ["mug"]), "is not a pair"),
    (("a", "b"), "is not a pair"),
    (([], []), "is empty"),
    ((["a.png"], ["mugs\n"]), "'mugs\\n' is not a class of office_caltech_10"),
]


def test_an_error_says_what_is_wrong_with_a_list(tmp_path, empty_cache):
    source, release = SETS["office_caltech"]
    file = make_set(release, tmp_path) / "dslr_test.pkl"
    for content, expected in DAMAGED:
        write(file, content)
        broken.check(source, file, expected, "med-air/FedBN", folder=str(tmp_path))
    file.unlink()
    broken.check(source, file, "is missing", "med-air/FedBN", folder=str(tmp_path))
    assert not empty_cache.exists()


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
    order, expected = np.random.default_rng(0).permutation(21), []
    for test, kept in ((False, order[4:]), (True, order[:4])):
        for number, domain in enumerate(release.domains):
            expected += [(*files[domain][at], number, test) for at in kept]
    assert [*zip(data.files, data.y, data.domain, data.test, strict=True)] == expected
    for made, file in zip(data.x, data.files, strict=True):
        assert np.array_equal(made, np.asarray(Image.open(file)))
    empty = tmp_path / release.domains[-1] / release.classes[3]
    for file in empty.glob("[01].*"):
        file.unlink()
    assert complaint(source, folder=str(tmp_path)).startswith(f"{empty} has no images")


@pytest.fixture
def official(tmp_path, empty_cache):
    return write_published("domainnet_full", tmp_path / "DomainNet")


@pytest.mark.parametrize("lists", [".", "splits"])
def test_the_lists_determine_the_training_and_test_images(lists, official):
    (official / lists).mkdir(exist_ok=True)
    for file in official.glob("*.txt"):
        file.rename(official / lists / file.name)
    for folder in (official.parent, official):
        data = domainnet.domainnet_full(folder=str(folder), size=16, classes=3, classes_seed=4)
        kept = [LISTED.index(name) for name in data.classes]
        assert len(kept) == 3 and kept == sorted(kept)
        row = 0
        for test, part in enumerate(("train", "test")):
            for number, domain in enumerate(data.domains):
                for line in (official / lists / f"{domain}_{part}.txt").read_text().splitlines():
                    path, label = line.split()
                    if int(label) in kept:
                        image = np.asarray(Image.open(official / path))
                        assert np.array_equal(data.x[row], image)
                        actual = (data.y[row], data.domain[row], data.test[row])
                        assert actual == (kept.index(int(label)), number, test)
                        row += 1
        assert row == len(data.x) == len(data.y) and data.domains == domainnet.RELEASE.domains
        check_listing(domainnet.domainnet_full, folder=str(folder), size=8, classes=3)


def test_the_seed_determines_the_drawn_classes(official):
    load = partial(domainnet.domainnet_full, folder=str(official), size=8)
    drawn = [load(classes=2, classes_seed=seed).classes for seed in (0, 0, *range(1, 10))]
    assert drawn[0] == drawn[1] and len(set(drawn)) > 3
    assert load(classes=4).classes == LISTED
    for key, value in {"classes": 0, "classes_seed": -1}.items():
        message = complaint(load, **{"classes": 4, key: value})
        assert f"data.{key} " in message and str(value) in message
    assert "data.classes " in complaint(load, classes=5)


CARRIER = "clipart/aircraft_carrier/clipart_0_0.png"
NO_PAIR, LEAVES = "is not a path and a label", "is not in the data set's folder"
WRONG_PATH, GAP = "is not clipart/CLASS/IMAGE", "classes are not 0, 1, .."
BAD_LINES = [  # (first line of a list, words of the error)
    (CARRIER, NO_PAIR),
    (f"{CARRIER} \u00b2", NO_PAIR),
    ("/etc/passwd 0", LEAVES),
    ("real/aircraft_carrier/a.png 0", WRONG_PATH),
    ("clipart/aircraft_carrier/a/b.png 0", WRONG_PATH),
    (f"{CARRIER} 1", "label 1 stands for 'airplane' and 'aircraft_carrier'"),
    ("clipart/zoo/a.png 345", f"the labels of 5 {GAP}"),
]


def test_bad_lists_and_images_are_errors(official, monkeypatch):
    file = official / "clipart_test.txt"
    whole = file.read_bytes()
    load = partial(domainnet.domainnet_full, folder=str(official), classes=4)
    cases = [(f"{line}\n".encode() + whole, expected) for line, expected in BAD_LINES]
    cases += [(b"\n", "is empty"), (None, "is missing")]
    with monkeypatch.context() as patch:
        patch.setattr(images, "decode", None)  # no image is read
        for content, expected in cases:
            broken.replace(file, content)
            broken.check(load, official, expected, "M3SDA")
    file.write_bytes(whole)
    image = official / "sketch" / "t-shirt" / "sketch_3_1.png"
    broken.replace(image, b"<html>")
    broken.check(load, image)
