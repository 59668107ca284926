"""Digits-Five: MNIST-M, MNIST, USPS, synthetic digits and SVHN, as in FedPick and FedC2I.

Three forms can be read. FedBN's (https://github.com/med-air/FedBN, utils/data_preprocess.py) has
pickled pairs (images, labels) and splits each data set 80/20; its parts 0 .. 9 are the first 7438
images of train.pkl. M3SDA's (Peng et al. 2019) and KD3A's MATLAB files keep the original splits
(USPS: 7438 + 1860). Arrays are the examples of one sampling, fedpick.npz or fedc2i.npz, with x, y,
domain (the names in FOLDERS) and split, as in `arrays`. Some domains may be missing.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, first_of_each, pooled
from fedjax_lab.data.declared import Side, source
from fedjax_lab.data.formats import matlab, npz, pickles
from fedjax_lab.data.formats.image_arrays import array_of, labels_of
from fedjax_lab.data.places import fetched_by_hand, locate
from fedjax_lab.data.safe import Fault
from fedjax_lab.data.sources import arrays
from fedjax_lab.errors import nearest, quoted
from fedjax_lab.ranges import OneOf

FOLDERS = {  # the domains and their folders in FedBN's release
    "mnist_m": "MNIST_M",
    "mnist": "MNIST",
    "usps": "USPS",
    "synth": "SynthDigits",
    "svhn": "SVHN",
}
MATLAB = {  # file, images, labels; {} is train or test; the first file that exists is used
    "mnist_m": [("mnistm_with_label.mat", "{}", "label_{}")],
    "mnist": [("mnist_data.mat", "{}_32", "label_{}")],
    "usps": [("usps_28x28.mat", "dataset", "dataset")],
    "synth": [("synth_{}_32x32.mat", "X", "y"), ("syn_number.mat", "{}_data", "{}_label")],
    "svhn": [("svhn_{}_32x32.mat", "X", "y")],
}
PARTS = ("test.pkl", "train.pkl", "partitions")  # of a domain in FedBN's release
PLACES = ("", "digits_five/", "digit_dataset/", "Digit-Five/", "DigitFive/")  # of an archive
PROBES = {  # files whose names identify a form; files of other domains do as well
    "fedbn": [f"{place}MNIST/test.pkl" for place in PLACES[:3]],
    "m3sda": [f"{place}mnist_data.mat" for place in (*PLACES[:2], *PLACES[3:])],
    "arrays": [f"{place}fedpick.npz" for place in PLACES[:2]],
}


class Sampling(NamedTuple):
    """The examples of each domain that a paper uses; they are always the first ones."""

    pool: int  # number of training examples from which the paper chooses
    parts: int  # number of parts of FedBN's release that hold the pool
    train: int  # training examples of each class; 0: the whole pool
    test: int  # test examples of each class; 0: all


SAMPLINGS = {"fedpick": Sampling(1000, 2, 0, 0), "fedc2i": Sampling(7438, 10, 100, 200)}


@source(fetched_by_hand("digits_five"))
def digits_five(
    *,
    folder: str = "",
    size: Side = 32,
    sampling: Annotated[str, OneOf(SAMPLINGS)] = "fedpick",
    source: Annotated[str, OneOf(("auto", *PROBES))] = "auto",
) -> Dataset:
    """Digits-Five: images [R, size, size, 3] of the domains in FOLDERS.

    size: the side of an image in pixels.
    sampling: fedpick: the first 1000 training images of each domain and all test images; fedc2i:
        the first 100 of each class among the first 7438 training images of each domain, and the
        first 200 test images of each class.
    source: the form to read, fedbn, m3sda or arrays; auto takes the first that a folder has.
    folder: the folder with the files, or with a folder digits_five; empty: ~/.cache/fedjax_lab and
        data/ are searched.
    """
    probe, chosen = find(folder, source), SAMPLINGS[sampling]
    names = domains(probe)
    if len(names) < len(FOLDERS):
        logging.getLogger(__name__).warning(
            "%s has %d of the five domains: %s; means over domains are not those of papers",
            _base(probe), len(names), ", ".join(names),
        )  # fmt: skip
    if probe.suffix == ".pkl":
        read = partial(_fedbn, _base(probe), chosen.parts)
    elif probe.suffix == ".mat":
        read = partial(_m3sda, _base(probe))
    else:
        file = _base(probe) / f"{sampling}.npz"
        read = partial(_arrays, arrays.read(file), file)
    train = [_first(*read(name, "train"), chosen.pool, chosen.train) for name in names]
    test = [_first(*read(name, "test"), None, chosen.test) for name in names]
    parts = [images for images, _ in (*train, *test)]
    pixels = _resized(parts, size)
    made = pooled(pixels, [y for _, y in train], [y for _, y in test])
    return Dataset(**made, classes=tuple("0123456789"), domains=names)


def find(folder: str, release: str = "auto") -> Path:
    """A file that identifies a release; it exists unless its domain is missing."""
    probes = sum(PROBES.values(), []) if release == "auto" else PROBES[release]
    return locate(folder, probes, lambda probe: bool(domains(probe)))


def domains(probe: Path) -> tuple[str, ...]:
    """The domains of a release that exist, in the order of FOLDERS; probe: see `find`."""
    base = _base(probe)
    if probe.suffix == ".npz":
        files = [base / f"{sampling}.npz" for sampling in SAMPLINGS]
        held = [_domains_of_arrays(file) for file in files if file.is_file()]
        return tuple(name for name in FOLDERS if any(name in names for names in held))
    if probe.suffix == ".pkl":
        choices = {d: [base / f / part for part in PARTS] for d, f in FOLDERS.items()}
    else:
        choices = {d: [base / each[0].format("train") for each in MATLAB[d]] for d in FOLDERS}
    return tuple(name for name, files in choices.items() if any(map(Path.exists, files)))


def _base(probe):
    """The folder of a release; probe: see `find`."""
    return probe.parents[1] if probe.suffix == ".pkl" else probe.parent


def _domains_of_arrays(file):
    """The distinct names in the array `domain` of fedpick.npz or fedc2i.npz."""
    with safe.reading(file, problem="is not an .npz file, or is damaged"):
        lacking = {"domain", "split"}.difference(npz.names(file))
    if lacking:
        raise Fault(f"{file} has no array {min(lacking)!r}")
    names = set(map(str, npz.read(file, ["domain"], "", "is damaged")["domain"].tolist()))
    unknown = next(iter(names.difference(FOLDERS)), None)
    if unknown is not None:
        raise Fault(f"{file}: no domain {quoted(unknown)}; {nearest(unknown, FOLDERS)}")
    return names


def _arrays(members: dict, file: Path, domain: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a domain. members: the arrays of fedpick.npz or fedc2i.npz, by name."""
    rows = members["domain"] == domain
    rows &= arrays.is_test(file, members["split"]) == (split == "test")
    if not rows.any():
        raise Fault(f"{file} has no {split} examples of {domain}")
    return _examples(members["x"][rows], members["y"][rows], file)


def _first(
    images: np.ndarray, labels: np.ndarray, pool: int | None, each: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `each` examples of each class (0: all) among the first `pool` examples."""
    images, labels = images[:pool], labels[:pool]
    if each == 0:
        return images, labels
    rows = first_of_each(labels, each)
    return images[rows], labels[rows]


def _fedbn(where: Path, count: int, domain: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of FedBN's release.

    The first `count` part files are preferred to train.pkl, which is large.
    """
    folder = where / FOLDERS[domain]
    parts = [folder / "partitions" / f"train_part{number}.pkl" for number in range(count)]
    in_parts = split == "train" and all(part.is_file() for part in parts)
    pairs = []
    for file in parts if in_parts else [folder / f"{split}.pkl"]:
        made = pickles.load(file)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise Fault(f"{file} is not a pair of images and labels")
        pairs.append(_examples(made[0], made[1], file))
    images, labels = zip(*pairs, strict=True)
    if len({array.shape[1:] for array in images}) > 1:
        raise Fault(f"the images in {folder / 'partitions'} differ in size")
    return np.concatenate(images), np.concatenate(labels)


def _m3sda(where: Path, domain: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of M3SDA's files."""
    choices = [tuple(text.format(split) for text in choice) for choice in MATLAB[domain]]
    name, *keys = next((c for c in choices if (where / c[0]).is_file()), choices[0])
    file = where / name
    problem = f"is damaged or has no {' and '.join(dict.fromkeys(keys))}"
    with safe.reading(file, problem=problem):
        content = matlab.load(file, keys)
        images, labels = (content[key] for key in keys)
        if keys == ["X", "y"]:
            images = images.transpose(3, 0, 1, 2)
        if domain == "usps":  # cells [2, 2]: (training, test) x (images, labels)
            images, labels = images[int(split == "test")]
    if labels.ndim == 2 and labels.shape[1] == 10:
        labels = labels.argmax(1)
    return _examples(images, labels, file)


def _examples(images: Any, labels: Any, file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, H, W] or [N, H, W, 3] uint8 and labels [N] int32; the label 10 stands for 0."""
    images = array_of(file, images)
    if images.ndim == 4 and 1 in (images.shape[1], images.shape[3]):  # one channel
        images = images[:, 0] if images.shape[1] == 1 else images[..., 0]
    pictures = images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)
    if images.dtype.kind not in "uif" or images.size == 0 or not pictures:
        what = f"{images.dtype} {list(images.shape)}"
        raise Fault(f"{file}: its images are {what}, not [N, H, W] or [N, H, W, 3]")
    labels = labels_of(file, labels, len(images), range(11))
    return _pixels(images, file), labels % 10


def _pixels(images: np.ndarray, file: Path) -> np.ndarray:
    """The images as uint8 in 0..255; floats may be in 0..1 or in 0..255."""
    if images.dtype == np.uint8:
        return images
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 255):
        raise Fault(f"{file}: its pixels are from {low} to {high}, not 0 to 255")
    fractions = images.dtype.kind == "f" and high <= 1
    return np.rint(images * 255 if fractions else images).astype(np.uint8)


def _resized(parts: list[np.ndarray], size: int) -> np.ndarray:
    """The images [R, size, size, 3] of all parts [., H, W] or [., H, W, 3], resized bilinearly."""
    from PIL import Image

    made = np.empty((sum(map(len, parts)), size, size, 3), np.uint8)
    images = (image for part in parts for image in part)
    for row, image in enumerate(tqdm(images, "digits_five", len(made), unit=" images", delay=2)):
        small = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
        made[row] = np.asarray(small.convert("RGB"))
    return made
