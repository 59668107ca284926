"""Data that TensorFlow Datasets has prepared, read without TensorFlow.

TFDS must have written them as `array_record`, which its NumPy side reads; it cannot read its
default format, tfrecord. Needs the extra `tfds`. https://www.tensorflow.org/datasets/data_source
"""

import os
import re
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, of_one_domain
from fedjax_lab.errors import BadInput, check_choice

NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped")


def tfds(*, dataset: str = "cifar10", folder: str = "") -> Dataset:
    """The splits train and test of one of NAMES, images uint8, in the order of TFDS.

    `folder` is TFDS's data_dir; without it $TFDS_DATA_DIR, else ~/tensorflow_datasets. The newest
    version there is read. Raises BadInput if there is none, or not in that format.
    """
    check_choice("data.dataset", dataset, NAMES)
    where = Path(folder or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    remedy = (
        "prepare it, where TensorFlow is installed, with `tfds build"
        f" {dataset} --file_format=array_record --data_dir={where}`"
    )
    version = newest(where / dataset)
    if version is None:
        raise BadInput(f"{where} has no prepared {dataset}: {remedy}")
    with safe.reading(version, remedy):
        for file in version.glob("*.*"):
            safe.check_regular(file)
    try:
        import tensorflow_datasets

        builder = tensorflow_datasets.builder_from_directory(version)
        train, test = (_examples(builder.as_data_source(split)) for split in ("train", "test"))
        classes = tuple(builder.info.features["label"].names)
    except ImportError as error:
        raise BadInput(f"a package is missing ({error}): pip install 'fedjax_lab[tfds]'") from error
    except Exception as error:  # TFDS and array_record raise any
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{version} cannot be read ({reason}): {remedy}") from error
    return of_one_domain(train, test, classes, dataset)


def newest(folder: Path) -> Path | None:
    """The folder of the highest version that was prepared whole; None if there is none."""
    versions = [
        (tuple(map(int, file.parent.name.split("."))), file.parent)
        for file in folder.glob("*/dataset_info.json")
        if re.fullmatch(r"\d+\.\d+\.\d+", file.parent.name)
    ]
    return max(versions)[1] if versions else None


def _examples(source) -> tuple[np.ndarray, np.ndarray]:
    """Images [R, H, W, channels] and labels [R] of a split."""
    rows = tqdm(source, "tfds", unit=" images", delay=2)
    images, labels = zip(*((row["image"], row["label"]) for row in rows), strict=True)
    return np.stack(images), np.array(labels, np.int32)
