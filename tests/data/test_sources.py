"""What all data sources have in common: their names, their errors and the functions they share."""

import subprocess
import sys
from pathlib import Path

import leaf_files
import numpy as np
import optional
import pytest
from inputs import complaint
from record_files import make, write

from fedjax_lab.data import dataset, places
from fedjax_lab.experiment.registry import look_up


def test_importing_the_sources_imports_no_heavy_packages():
    check = (
        "import sys;"
        "from fedjax_lab.data.sources import arrays, digit_domains, idx, synthetic, writers;"
        "print([m for m in ('matplotlib', 'sklearn', 'PIL', 'jax') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]"


WANTED = {  # what the error for a missing data set says about its files
    "cifar10": ("cifar.html", "cifar-10-python.tar.gz", "cifar-10-batches-py/", "data_batch_1, "),
    "cifar100": ("cifar.html", "cifar-100-python.tar.gz", "cifar-100-python/", "train, test, meta"),
    "cinic10": ("CINIC-10",),
    "digits_five": ("MNIST/test.pkl", "https://github.com/med-air/FedBN"),
    "domainnet": ("https://github.com/med-air/FedBN", "clipart/", "sketch/"),
    "domainnet_full": ("clipart_train.txt", "M3SDA"),
    "gtsrb": ("Final_Training/Images",),
    "k49": ("k49",),
    "medmnist": ("pathmnist.npz",),
    "office_caltech": ("https://github.com/med-air/FedBN", "amazon/", "webcam/"),
    "office_home": ("domainbed/scripts/download.py", "Real World"),
    "pacs": ("domainbed/scripts/download.py", "art_painting, cartoon, photo, sketch"),
    "shakespeare": ("shakespeare/train", "--tf 0.8"),
    "svhn": ("train_32x32.mat", "test_32x32.mat", "http://ufldl.stanford.edu/housenumbers"),
    "tiny_imagenet": ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "vlcs": ("domainbed/scripts/download.py", "VOC2007"),
}


@pytest.mark.parametrize("name", WANTED)
def test_missing_data_sets_are_errors_with_instructions(name, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))
    source = look_up("data", name)
    assert source.__name__ == name
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(source, folder=folder)
        for part in (place, "data.folder", *WANTED[name]):
            assert part in message
    assert "/nowhere/c" in complaint(source, folder="/nowhere/c")


SIZES = {"tiny_imagenet": (7, 65)}  # sides of images; 7 and 513 for all others


SIZED = "cinic10 digits_five domainnet domainnet_full gtsrb office_caltech pacs tiny_imagenet"


@pytest.mark.parametrize("name", SIZED.split())
def test_sizes_of_images_are_checked_first(name):
    for size in SIZES.get(name, (7, 513)):
        message = complaint(look_up("data", name), size=size)
        assert "data.size" in message and message.endswith(f"got {size}")


EXTRAS = [  # (missing package, data source, its file or folder, extra)
    ("datasets", "huggingface", "toy", "hub"),
    ("array_record.python.array_record_module", "records", "toy", "stream"),
    ("h5py", "tff_hdf5", "", "hdf5"),
    ("pyarrow", "text_files", "train.parquet", "text"),
    ("tokenizers", "text_files", "train.csv", "text"),
    ("tensorflow_datasets", "tfds", "", "tfds"),
]


@pytest.mark.parametrize("package, name, file, extra", EXTRAS)
def test_a_missing_package_is_named_with_its_extra(
    package, name, file, extra, tmp_path, monkeypatch
):
    write(make(), tmp_path / "toy")
    optional.module("h5py")
    leaf_files.write_fed_emnist(tmp_path)
    (tmp_path / "train.csv").write_text("text,label\na,b\n")
    for empty in ("train.parquet", "tokenizer.json", "cifar10/3.0.2/dataset_info.json"):
        (tmp_path / empty).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / empty).write_text("{}")
    monkeypatch.setitem(sys.modules, package, None)
    key = {"huggingface": "dataset", "records": "path", "text_files": "path"}.get(name, "folder")
    settings = {"tokenizer": str(tmp_path)} if name == "text_files" else {}
    message = complaint(look_up("data", name), **{key: str(tmp_path / file)}, **settings)
    assert package.partition(".")[0] in message
    assert f"pip install 'fedjax_lab[{extra}]'" in message


def test_first_of_each_returns_the_first_rows_of_each_class():
    labels = [2, 0, 2, 2, 1, 0, 2]
    assert dataset.first_of_each(labels, 2).tolist() == [0, 1, 2, 4, 5]
    assert dataset.first_of_each(labels, 9).tolist() == list(range(7))


def test_a_pool_has_all_training_examples_first():
    x = np.arange(8)
    made = dataset.pooled(x, [[5, 6], [7]], [[0], [1, 2, 3, 4]])
    assert made["x"] is x and made["y"].tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert made["domain"].tolist() == [0, 0, 1, 0, 1, 1, 1, 1]
    assert made["test"].tolist() == [False] * 3 + [True] * 5
    assert (made["y"].dtype, made["domain"].dtype) == (np.int32, np.int32)
