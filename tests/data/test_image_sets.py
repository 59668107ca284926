"""Published sets of images: tiny copies in the original formats, whole and damaged."""

import gzip
import io
import pickle
from pathlib import Path

import broken
import numpy as np
import pytest
from domain_files import naive_resize
from image_files import FLAT, IMAGES, Call, check_listing, check_one_domain, python2
from inputs import complaint
from PIL import Image
from published import (
    TITLE,
    cinic10_files,
    contents,
    emnist_files,
    gtsrb_files,
    idx_of,
    k49_arrays,
    medmnist_arrays,
    npz_of,
    write_all,
    write_published,
)
from scipy.io import savemat

from fedjax_lab.data import places
from fedjax_lab.data.sources import cifar, cinic10, emnist, gtsrb, idx, k49, medmnist, svhn
from fedjax_lab.data.sources.tiny_imagenet import tiny_imagenet
from fedjax_lab.experiment.registry import look_up

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def fetched(tmp_path):
    return lambda name: write_published(name, tmp_path / "set")


SETS = {"cifar10": (cifar.cifar10, cifar.CIFAR10), "cifar100": (cifar.cifar100, cifar.CIFAR100)}


@pytest.mark.parametrize("where", ["itself", "parent", "archive"])
@pytest.mark.parametrize("name", SETS)
def test_cifar_is_read_from_a_folder_or_an_archive(name, where, fetched, tmp_path):
    source, release = SETS[name]
    folder = fetched(name)
    if where == "archive":
        folder = tmp_path / "archive"
        write_all(folder, contents(name))
    data = source(folder=str(folder / release.folder if where == "itself" else folder))
    number = len(release.train)
    check_one_domain(data, name, 2 * number, 2 * number + 2)
    rows = [n % 5 + i for n in range(number + 1) for i in (0, 1)]
    assert np.array_equal(data.x, IMAGES[rows])
    assert data.y.tolist() == [label for n in range(number + 1) for label in (n, 1)]
    assert data.classes == tuple(f"c{n}" for n in range(release.num_classes))
    left = release.archive if where == "archive" else release.folder
    assert [file.name for file in folder.iterdir()] == [left]  # nothing was unpacked


def batch(data=FLAT[:1], labels=(1,)):
    return python2({"data": data, "labels": list(labels)})


CIFAR = [  # (file, content, words of the error)
    ("test_batch", None, "is missing"),
    ("data_batch_2", python2([1, 2]), "not a dictionary with data and labels"),
    ("data_batch_2", batch([[1], []]), "holds something else than arrays"),
    ("data_batch_2", batch(FLAT[:1, :9]), "its images are uint8 [1, 9], not uint8 [N, 3072]"),
    ("data_batch_2", batch(FLAT[:2]), "its labels are int64 [1], not 2 numbers"),
    ("data_batch_2", batch(labels=[10]), "label 10 in row 0 is not in 0 .. 9"),
    ("test_batch", batch(labels=["\n"]), "its labels are |S1 [1], not 1 numbers"),
    ("batches.meta", python2({"label_names": ["a"]}), "has 1 classes, not 10"),
    ("data_batch_3", pickle.dumps(Call(eval, "1")), "is damaged or not plain data"),
]


def test_svhn_has_its_images_and_labels(fetched):
    data = svhn.svhn(folder=str(fetched("svhn")))
    check_one_domain(data, "svhn", 5, 10)
    assert np.array_equal(data.x, np.concatenate([IMAGES[:5]] * 2))
    assert data.y.tolist() == [0, 1, 9, 2, 0] * 2 and data.classes == tuple("0123456789")


def matlab(**arrays):
    file = io.BytesIO()
    savemat(file, arrays)
    return file.getvalue()


X, Y = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)
SVHN = [  # (content of the test file, words of the error)
    (None, "is missing"),
    (matlab(y=Y), "its images are object []"),
    (
        matlab(X=X.transpose(3, 0, 1, 2), y=Y),
        "are uint8 [3, 2, 32, 32], not uint8 [N, 32, 32, 3]",
    ),
    (matlab(X=X, y=Y[:1]), "its labels are uint8 [1, 1], not 2 numbers"),
    (matlab(X=X, y=11 * Y), "label 11 in row 0 is not in 1 .. 10"),
    (matlab(X=X, y=1.5 * Y), "label 1.5 in row 0 is not"),
]
IMAGE_FILE, LABEL_FILE = (f"{name}.gz" for name in idx.FILES[:2])
LABELS = np.arange(20, dtype=np.uint8) % 10


def test_idx_files_may_be_gzipped_or_not_and_have_any_number_of_classes(fetched):
    folder = fetched("fashion_mnist")
    images = np.arange(20 * 784).reshape(20, 28, 28, 1) % 10
    (folder / idx.FILES[0]).write_bytes(gzip.decompress((folder / IMAGE_FILE).read_bytes()))
    (folder / IMAGE_FILE).unlink()
    plain, data = idx.idx(folder=str(folder)), idx.fashion_mnist(folder=str(folder))
    for made in (plain, data):
        assert np.array_equal(made.x, np.concatenate([images] * 2))
        assert made.y.tolist() == [*LABELS, *LABELS]
        check_one_domain(made, made.domains[0], 20, 40)
    assert plain.domains == (folder.name,) and plain.classes == tuple("0123456789")
    assert data.classes[0] == "T-shirt/top" and data.classes[9] == "Ankle boot"
    for release in (idx.fashion_mnist, idx.mnist, idx.kmnist):
        few = release(folder=str(folder), train_per_class=1)  # all test images stay
        assert few.y.tolist() == [*range(10), *LABELS] and few.test.sum() == 20
        assert np.array_equal(few.x, np.concatenate([images[:10], images]))
    message = complaint(idx.fashion_mnist, folder=str(folder), train_per_class=-1)
    assert "data.train_per_class must be at least 0" in message
    (folder / LABEL_FILE).write_bytes(idx_of(46 + LABELS))
    assert len(idx.idx(folder=str(folder)).classes) == 56
    assert "is not in 0 .. 9" in complaint(idx.fashion_mnist, folder=str(folder))


def test_fashion_mnist_is_found_in_the_usual_places(fetched, tmp_path, monkeypatch):
    folder = fetched("fashion_mnist")
    (tmp_path / IMAGE_FILE).write_bytes(b"half a download")
    monkeypatch.setattr(places, "PLACES", ())
    search = idx.FASHION._replace
    monkeypatch.setattr(idx, "FASHION", search(elsewhere=(str(tmp_path), str(folder))))
    assert len(idx.fashion_mnist().x) == 40
    monkeypatch.setattr(idx, "FASHION", search(elsewhere=("/nowhere/a", "/nowhere/b")))
    message = complaint(idx.fashion_mnist)
    for part in ("/nowhere/a", "/nowhere/b", "apt install dataset-fashion-mnist", "data.folder"):
        assert part in message
    assert "--config.data.folder" in complaint(idx.idx, folder="")
    assert "/nowhere is not a folder" in complaint(idx.idx, folder="/nowhere")


def flipped(content):
    content = bytearray(content)
    content[len(content) // 2] ^= 16
    return content


def zeros(*shape):
    return idx_of(np.zeros(shape, np.uint8))


PLAIN = gzip.decompress(zeros(20, 28, 28))
IDX = [  # (file, content, words of the error)
    (IMAGE_FILE, None, "is missing"),
    (IMAGE_FILE, gzip.compress(PLAIN[:-1]), "truncated, 15679 bytes instead of 15680"),
    (IMAGE_FILE, zeros(0, 28, 28), "is empty"),
    (IMAGE_FILE, gzip.compress(b"PNG!" + PLAIN), "holds something else"),
    (IMAGE_FILE, zeros(20), "holds labels, not images"),
    (IMAGE_FILE, zeros(9, 28, 28), "holds 9 images"),
    (IMAGE_FILE, zeros(20, 20, 28), "20 x 28 and 28 x 28"),
    (IMAGE_FILE, flipped, ""),
    (LABEL_FILE, idx_of(7 + LABELS), "label 10 in row 3 is not in 0 .. 9"),
]
SPLITS = {  # {split of EMNIST: (number of classes, first class, last class)}
    "byclass": (62, "0", "z"),
    "bymerge": (47, "0", "t"),
    "balanced": (47, "0", "t"),
    "letters": (26, "A", "Z"),
    "digits": (10, "0", "9"),
    "mnist": (10, "0", "9"),
}


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_of_emnist_has_its_classes_and_upright_images(split, tmp_path):
    write_all(tmp_path, emnist_files())
    count, first, last = SPLITS[split]
    data = emnist.emnist(folder=str(tmp_path), split=split)
    check_one_domain(data, "emnist", 4, 6)
    assert (len(data.classes), data.classes[0], data.classes[-1]) == (count, first, last)
    assert data.y[[0, 3, 4, 5]].tolist() == [0, count - 1, 0, count - 1]
    published = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
    for row in range(28):
        np.testing.assert_array_equal(data.x[:4, row, :, 0], published[:, :, row])
    merged = emnist.SPLITS["bymerge"]  # letters that look alike are one class
    assert merged[10:36] == "ABCDEFGHIJKLMNOPQRSTUVWXYZ" and merged[36:] == "abdefghnqrt"


def test_torchvisions_folder_of_emnist_is_found(tmp_path, monkeypatch):
    write_all(tmp_path / "EMNIST/raw", {k: v for k, v in emnist_files().items() if "letter" in k})
    assert len(emnist.emnist(folder=str(tmp_path), split="letters").x) == 6
    monkeypatch.setattr(places, "PLACES", (str(tmp_path),))
    assert len(emnist.emnist(split="letters").x) == 6
    assert "EMNIST balanced is in none of" in complaint(emnist.emnist)
    message = complaint(emnist.emnist, folder=str(tmp_path), split="letter")
    assert "data.split" in message and "did you mean 'letters'?" in message


@pytest.mark.parametrize("source, classes", [(idx.mnist, "0 9"), (idx.kmnist, "o wo")])
def test_mnist_and_kmnist_have_named_classes(source, classes, fetched):
    data = source(folder=str(fetched(source.__name__)))
    check_one_domain(data, source.__name__, 20, 40)
    assert [data.classes[0], data.classes[-1]] == classes.split() and len(data.classes) == 10


def test_kuzushiji_49_has_its_images_labels_and_classes(fetched):
    arrays = k49_arrays()
    data = k49.k49(folder=str(fetched("k49")))
    check_one_domain(data, "k49", 5, 8)
    assert np.array_equal(data.x[..., 0], np.concatenate(arrays[::2]))
    assert np.array_equal(data.y, np.concatenate(arrays[1::2]))
    assert len(set(data.classes)) == 49 and data.classes[:2] == ("a", "i")


K49 = [  # (number of the file, its array, words of the error)
    (0, np.zeros((5, 28, 28)), "its images are float64 [5, 28, 28, 1], not uint8"),
    (1, np.zeros(4, np.uint8), "its labels are uint8 [4], not 5 numbers"),
    (3, np.full(3, 49, np.uint8), "label 49 in row 0 is not in 0 .. 48"),
]


def medmnist_file(**changed):
    arrays = {**medmnist_arrays(9), **changed}
    return npz_of({key: array for key, array in arrays.items() if array is not None})


@pytest.mark.parametrize("channels", [(), (3,)])
def test_validation_images_of_medmnist_are_left_out_or_trained_on(tmp_path, channels):
    made = medmnist_arrays(9, channels=channels)
    (tmp_path / "pathmnist.npz").write_bytes(npz_of(made))
    for merge, names in ((False, ["train"]), (True, ["train", "val"])):
        data = medmnist.medmnist(folder=str(tmp_path), merge_valid=merge)
        check_one_domain(data, "pathmnist", 9 if merge else 6, 13 if merge else 10)
        x = np.concatenate([made[f"{name}_images"] for name in (*names, "test")])
        y = np.concatenate([made[f"{name}_labels"] for name in (*names, "test")])
        assert np.array_equal(data.x, x.reshape(*x.shape[:3], -1))
        assert np.array_equal(data.y, y[:, 0])
        assert data.classes[0] == "adipose" and len(data.classes) == 9


def test_each_size_of_medmnist_is_read_from_a_separate_file_and_others_are_rejected(tmp_path):
    files = {"medmnist/retinamnist_64.npz": npz_of(medmnist_arrays(5, size=64))}
    write_all(tmp_path, files)
    settings = {"folder": str(tmp_path), "dataset": "retinamnist"}
    assert medmnist.medmnist(**settings, size=64).x.shape == (10, 64, 64, 3)
    assert "files/retinamnist_128.npz" in complaint(medmnist.medmnist, **settings, size=128)
    assert "data.size cannot be 32; valid: 28, 64, 128, 224" in complaint(
        medmnist.medmnist, size=32
    )
    assert "14 labels for each image" in complaint(medmnist.medmnist, dataset="chestmnist")
    assert "did you mean 'pathmnist'?" in complaint(medmnist.medmnist, dataset="patmnist")


GRAY = np.zeros((4, 28, 28), np.uint8)
MEDMNIST = [  # (changed arrays, words of the error)
    ({"test_labels": None}, "not a file of MedMNIST"),
    ({"train_images": np.zeros((6, 64, 64, 3), np.uint8)}, "[6, 64, 64, 3], not"),
    ({"test_images": GRAY}, "only some of its splits have color images"),
    ({"test_labels": np.zeros((4, 14), np.uint8)}, "its labels are uint8 [4, 14], not 4 numbers"),
    ({"train_labels": np.full((6, 1), 9, np.uint8)}, "label 9 in row 0 is not in 0 .. 8"),
]


def opened(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("merge", [False, True])
def test_the_validation_images_of_cinic10_are_left_out_or_trained_on(fetched, merge):
    parts, folder = ["train", "valid", "test"] if merge else ["train", "test"], fetched("cinic10")
    data = cinic10.cinic10(folder=str(folder), size=8, merge_valid=merge)
    check_one_domain(data, "cinic10", 20 * (len(parts) - 1), 20 * len(parts))
    files = cinic10_files()
    folders = [f"{part}/{name}/" for part in parts for name in cinic10.CLASSES]
    names = [name for at in folders for name in sorted(p for p in files if p.startswith(at))]
    assert np.array_equal(data.x, [opened(files[name]) for name in names])
    assert data.y.tolist() == np.tile(np.repeat(np.arange(10), 2), len(parts)).tolist()
    assert data.classes[0] == "airplane" and data.classes[9] == "truck"
    check_listing(cinic10.cinic10, folder=str(folder), size=8, merge_valid=merge)
    empty = folder / "test/dog"
    for file in empty.iterdir():
        file.unlink()
    message = complaint(cinic10.cinic10, folder=str(folder), merge_valid=merge)
    assert f"{empty} has no images" in message and "`fedjax-lab data get cinic10`" in message


@pytest.mark.parametrize("roi", [False, True])
def test_images_of_gtsrb_are_whole_or_cropped_to_the_sign(fetched, roi):
    folder = fetched("gtsrb")
    data = gtsrb.gtsrb(folder=str(folder), size=8, roi=roi)
    check_one_domain(data, "gtsrb", 43, 48)
    assert data.y.tolist() == [*range(43), 42, 41, 40, 39, 38] and len(data.classes) == 43
    files = [content for path, content in gtsrb_files().items() if path.endswith(".ppm")]
    for made, file in zip(data.x, files, strict=True):
        expected = naive_resize(opened(file)[3:11, 2:9] if roi else opened(file), 8)
        assert np.abs(made - expected).max() < 1.01
    check_listing(gtsrb.gtsrb, folder=str(folder / "GTSRB"), size=8, roi=roi)


@pytest.mark.parametrize("box", ["0;0;13;12", "5;5;5;9", "-1;0;3;3"])
def test_changed_boxes_change_the_pixels_and_those_outside_of_the_image_are_errors(fetched, box):
    folder = fetched("gtsrb")
    before = gtsrb.gtsrb(folder=str(folder), size=8, roi=True).x
    write_all(folder, gtsrb_files("0;0;12;12"))
    assert not np.array_equal(gtsrb.gtsrb(folder=str(folder), size=8, roi=True).x, before)
    write_all(folder, gtsrb_files(box))
    assert len(gtsrb.gtsrb(folder=str(folder), size=8).x) == 48
    message = complaint(gtsrb.gtsrb, folder=str(folder), size=8, roi=True)
    assert "00000_00000.ppm is damaged or not an image (the box of its sign" in message


ROW = "00000_00000.ppm;12;12;0;0;9;9;"
GTSRB = [  # (content of a table, words of the error)
    (f"Filename;ClassId\n{ROW}3\n", "not a table of GTSRB ('Roi.X1')"),
    (f"{TITLE}{ROW}43\n", "label 43 in row 0 is not in 0 .. 42"),
    (TITLE, "has no images"),
    (b"\xff\xfe\x00", "cannot be read"),
]
TESTS = [f"val/images/val_{number}.JPEG" for number in (0, 1)]
TRAINING = [f"train/{n}/images/{n}_{k}.JPEG" for n in ("n01", "n02") for k in (10, 9)]


def test_tiny_imagenet_has_the_original_pixels_or_is_resized(fetched):
    where = fetched("tiny_imagenet") / "tiny-imagenet-200"
    data = tiny_imagenet(folder=str(where.parent), size=64)
    check_one_domain(data, "tiny_imagenet", 4, 6)
    images = [opened((where / name).read_bytes()) for name in TRAINING + TESTS]
    assert np.array_equal(data.x, images)
    assert data.files == tuple(str(where / name) for name in TRAINING + TESTS)
    assert data.classes == ("n01", "n02") and data.y.tolist() == [0, 0, 1, 1] + [1, 0]
    assert np.ptp(data.x[1], axis=-1).max() == 0  # n01_9 is gray
    for made, image in zip(tiny_imagenet(folder=str(where)).x, images, strict=True):
        assert np.abs(made - naive_resize(image, 32)).max() < 1.6
    check_listing(tiny_imagenet, folder=str(where))


TABLE = "val/val_annotations.txt"
TINY = [  # (file, content, words of the error)
    (TESTS[0], b"<html>", "is damaged or not an image"),
    (TESTS[1], None, "is missing"),
    (TABLE, lambda c: c.replace(b"n02", b"n99", 1), "'n99' of 'val_0.JPEG' is not in wnids.txt"),
    (TABLE, lambda c: c.replace(b"\t", b" "), "'' of 'val_0.JPEG n"),
    ("wnids.txt", b"", "is empty"),
]


DAMAGED = [
    *(("cifar10", f"{cifar.CIFAR10.folder}/{name}", *case) for name, *case in CIFAR),
    *(("svhn", svhn.FILES[1], *case) for case in SVHN),
    *(("fashion_mnist", *case) for case in IDX),
    *(("k49", k49.FILES[n], npz_of({"arr_0": array}), said) for n, array, said in K49),
    ("k49", k49.FILES[2], None, "is missing"),
    *(("pathmnist", "pathmnist.npz", medmnist_file(**changed), said) for changed, said in MEDMNIST),
    *(("gtsrb", f"GTSRB/{gtsrb.IMAGES}/00007/GT-00007.csv", *case) for case in GTSRB),
    *(("gtsrb", gtsrb.TEST, *case) for case in GTSRB),
    ("gtsrb", "GTSRB/Final_Test/Images/00003.ppm", None, "is missing"),
    *(("tiny_imagenet", f"tiny-imagenet-200/{name}", *case) for name, *case in TINY),
]


@pytest.mark.parametrize("name, file, content, expected", DAMAGED, ids=range(len(DAMAGED)))
def test_an_error_says_what_is_wrong_with_a_file(name, file, content, expected, fetched):
    folder = fetched(name)
    broken.replace(folder / file, content)
    source = look_up("data", "medmnist" if name == "pathmnist" else name)
    message = complaint(source, folder=str(folder))
    assert expected in message and str(folder) in message
    assert Path(file).name.removesuffix(".gz") in message or name.endswith("mnist")
    assert f"`fedjax-lab data get {name}`" in message
