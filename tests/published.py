"""Tiny data sets in the formats of the published ones, and catalog entries for them."""

import functools
import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile

import numpy as np
import optional
from image_files import FLAT, IMAGES, python2
from PIL import Image
from scipy.io import savemat

from fedjax_lab.data.fetching import catalog, unpack
from fedjax_lab.data.sources import (
    cifar,
    domainnet,
    emnist,
    idx,
    instruction_set,
    k49,
    medmnist,
)
from fedjax_lab.data.sources import cinic10 as cinic
from fedjax_lab.data.sources import gtsrb as signs
from fedjax_lab.data.sources.text_sets import AG_NEWS_FILES, SENTIMENT140_FILES

WNIDS = ("n02", "n01")  # not sorted, as in wnids.txt


@functools.cache
def contents(name):
    """{file name: bytes} of the files that a publisher offers, with tiny content."""
    if name in ("cifar10", "cifar100"):
        return _cifar(cifar.CIFAR10 if name == "cifar10" else cifar.CIFAR100)
    if name in ("fashion_mnist", "mnist", "kmnist"):
        return {f"{file}.gz": _idx(file) for file in idx.FILES}
    if name in medmnist.CLASSES:
        return {f"{name}.npz": npz_of(medmnist_arrays(len(medmnist.CLASSES[name])))}
    if name in ("ag_news", "sentiment140"):
        return _texts(name)
    if name in instruction_set.SETS:
        return _instructions(instruction_set.SETS[name])
    return MAKERS[name]()


def offered(name, server):
    """The catalog entry of a tiny copy of the data set, whose files are added to the server."""
    files, made = [], contents(name)
    for file in catalog.PUBLISHED[name].files:
        content = made[file.name]
        server.files[f"/{name}/{file.name}"] = content
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        address = f"{server.address}/{name}/{file.name}"
        files.append(file._replace(size=len(content), checksum=checksum, addresses=(address,)))
    return catalog.PUBLISHED[name]._replace(files=tuple(files))


def write_all(folder, files):
    """Writes {path: bytes} to a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def write_published(name, folder):
    """Writes the tiny files of a data set to a folder and unpacks them; returns the folder."""
    write_all(folder, contents(name))
    for file in contents(name):
        if file.endswith(catalog.ARCHIVES):
            unpack.unpack(folder / file, folder, "", lambda _: None)
            (folder / file).unlink()
    return folder


def zipped(files):
    """A zip archive of {path: bytes}."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return out.getvalue()


def tarred(files):
    """A gzipped tar archive of {path: bytes}; like `tar -C FOLDER .`, it starts with a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        first = tarfile.TarInfo("./")
        first.type = tarfile.DIRTYPE
        archive.addfile(first)
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def npz_of(arrays):
    """The bytes of an .npz file."""
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def idx_of(array):
    """The bytes of an idx file, gzipped."""
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def image(seed, form="PNG", side=16, mode="RGB"):
    """The bytes of an image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form)
    return out.getvalue()


def _cifar(release):
    names = [f"c{n}".encode() for n in range(release.num_classes)]
    parts = {release.meta: {release.label_names.decode(): [name.decode() for name in names]}}
    for n, part in enumerate((*release.train, release.test)):
        labels = {release.labels.decode(): [n % 10, 1]}
        parts[part] = {**labels, "data": FLAT[n % 5 : n % 5 + 2]}
    files = {f"{release.folder}/{part}": python2(value) for part, value in parts.items()}
    return {release.archive: tarred(files)}


def _idx(file):
    shape = (20, 28, 28) if "images" in file else (20,)
    return idx_of((np.arange(np.prod(shape)) % 10).reshape(shape).astype(np.uint8))


def _texts(name):
    if name == "ag_news":
        return {file: b'"3","Title","Words."\n"1","T","W"\n' * 2 for file in AG_NEWS_FILES}
    rows = b'"0","1","Mon","NO_QUERY","ann","so sad"\n"4","2","Tue","NO_QUERY","bob","good \xe9"\n'
    return {"trainingandtestdata.zip": zipped(dict.fromkeys(SENTIMENT140_FILES, rows))}


def _instructions(release):
    keys = ("question", "answer") if release.test else ("instruction", "input", "output")
    made = {}
    for number, file in enumerate(filter(None, (release.train, release.test))):
        rows = [{key: f"{key} {n} {number}" for key in keys} for n in range(2)]
        made[file] = json.dumps(rows).encode()
        if file.endswith(".jsonl"):
            made[file] = "\n".join(map(json.dumps, rows)).encode()
        if file.endswith(".parquet"):
            made[file] = _parquet(rows)
    return made


def _parquet(rows):
    pyarrow, out = optional.module("pyarrow"), io.BytesIO()
    optional.module("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


def _svhn():
    made = {}
    for name in ("train_32x32.mat", "test_32x32.mat"):
        out = io.BytesIO()
        x = np.ascontiguousarray(IMAGES[:5].transpose(1, 2, 3, 0))
        savemat(out, {"X": x, "y": np.array([[10], [1], [9], [2], [10]], np.uint8)})
        made[name] = out.getvalue()
    return made


def _tiny():
    lines = [f"val_{n}.JPEG\t{name}\t0\t0\t63\t63\n" for n, name in enumerate(WNIDS)]
    files = {"wnids.txt": "\n".join(WNIDS), "val/val_annotations.txt": "".join(lines)}
    for n, name in enumerate(WNIDS):
        for number, mode in ((10, "RGB"), (9, "L")):
            files[f"train/{name}/images/{name}_{number}.JPEG"] = image(n, "JPEG", 64, mode)
        files[f"val/images/val_{n}.JPEG"] = image(9 + n, "JPEG", 64)
    inner = {f"tiny-imagenet-200/{path}": content for path, content in files.items()}
    return {"tiny-imagenet-200.zip": zipped(inner)}


LISTED = ("aircraft_carrier", "airplane", "The_Mona_Lisa", "t-shirt")  # classes, by label


def _domainnet():
    made = {}
    for n, domain in enumerate(domainnet.RELEASE.domains):
        starts = [f"{domain}/{name}/{domain}_{label}" for label, name in enumerate(LISTED)]
        paths = [f"{start}_{i}.png" for i in range(2) for start in starts]
        images = {path: image(10 * n + i) for i, path in enumerate(paths)}
        made[f"{domain}.zip"] = zipped(images)
        lines = [f"{path} {i % 4}\n" for i, path in enumerate(paths)]
        made[f"{domain}_train.txt"] = "".join(lines[: 6 - n % 2]).encode()
        made[f"{domain}_test.txt"] = "".join(lines[4:]).encode()
    return made


def emnist_files():
    """{name: bytes} of the four files of each split: 4 + 2 images with labels of every kind."""
    made = {}
    for split, classes in emnist.SPLITS.items():
        first = emnist.FIRST_LABEL.get(split, 0)
        for n, name in enumerate(emnist.files(split)):
            count = 4 if n < 2 else 2
            images = np.random.default_rng(n).integers(0, 256, (count, 28, 28)).astype(np.uint8)
            labels = np.linspace(first, first + len(classes) - 1, count).astype(np.uint8)
            made[f"{name}.gz"] = idx_of(labels if n % 2 else images)
    return made


def k49_arrays():
    """The array of each file of Kuzushiji-49."""
    rng = np.random.default_rng(0)
    shapes = [(5, 28, 28), (5,), (3, 28, 28), (3,)]
    return [rng.integers(0, 49, shape).astype(np.uint8) for shape in shapes]


def medmnist_arrays(num_classes, size=28, channels=(3,)):
    """The arrays of a file of MedMNIST: 6 + 3 + 4 images; the label of the last one is 0."""
    rng, made = np.random.default_rng(0), {}
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        pixels = rng.integers(0, 256, (count, size, size, *channels))
        made[f"{split}_images"] = pixels.astype(np.uint8)
        made[f"{split}_labels"] = (np.arange(count, 0, -1) % num_classes).astype(np.uint8)[:, None]
    return made


def cinic10_files(side=8):
    """{path: bytes} of CINIC-10: two images of each class in each part."""
    return {
        f"{part}/{name}/{kind}-{part}-{n}.png": image(100 * i + 10 * j + n, side=side)
        for i, part in enumerate(("train", "valid", "test"))
        for j, name in enumerate(cinic.CLASSES)
        for n, kind in enumerate(("cifar10", "n01"))
    }


TITLE = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"


def gtsrb_files(box="2;3;9;11"):
    """{path: bytes} of GTSRB: one training image of each class, and five test images, 12 x 12."""
    made, row = {}, f"{{}};12;12;{box};{{}}\n"
    for label in range(len(signs.CLASSES)):
        folder = f"GTSRB/{signs.IMAGES}/{label:05}"
        made[f"{folder}/00000_00000.ppm"] = image(label, "PPM", 12)
        made[f"{folder}/GT-{label:05}.csv"] = (
            TITLE + row.format("00000_00000.ppm", label)
        ).encode()
    for n in range(5):
        made[f"GTSRB/Final_Test/Images/{n:05}.ppm"] = image(50 + n, "PPM", 12)
    rows = [row.format(f"{n:05}.ppm", 42 - n) for n in range(5)]
    return {**made, signs.TEST: "".join([TITLE, *rows]).encode()}


def _gtsrb():
    files = gtsrb_files()
    parts = {"Final_Training": {}, "Final_Test/": {}, signs.TEST: {}}
    for path, content in files.items():
        next(part for key, part in parts.items() if key in path)[path] = content
    names = [file.name for file in catalog.PUBLISHED["gtsrb"].files]
    return dict(zip(names, map(zipped, parts.values()), strict=True))


MAKERS = {
    "svhn": _svhn,
    "tiny_imagenet": _tiny,
    "domainnet_full": _domainnet,
    "emnist": lambda: {
        "gzip.zip": zipped({f"gzip/{name}": made for name, made in emnist_files().items()})
    },
    "k49": lambda: {
        name: npz_of({"arr_0": array}) for name, array in zip(k49.FILES, k49_arrays(), strict=True)
    },
    "cinic10": lambda: {
        "CINIC-10.tar.gz": tarred({f"./{path}": made for path, made in cinic10_files().items()})
    },
    "gtsrb": _gtsrb,
}
