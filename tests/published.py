"""Tiny sets in the formats of the published ones, and a catalog that has their checksums."""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile

import numpy as np
from image_files import FLAT, IMAGES, python2
from PIL import Image
from scipy.io import savemat

from fedjax_lab.data import catalog, cifar, domainnet, idx
from fedjax_lab.data.text_sets import AG_NEWS_FILES, SENTIMENT140_FILES

WNIDS = ("n01", "n02")


def contents(name):
    """{file name: bytes} of what a publisher offers."""
    if name in ("cifar10", "cifar100"):
        return _cifar(cifar.CIFAR10 if name == "cifar10" else cifar.CIFAR100)
    if name in ("fashion_mnist", "mnist", "kmnist"):
        return {f"{file}.gz": _idx(file) for file in idx.FILES}
    if name in ("ag_news", "sentiment140"):
        return _texts(name)
    return {"svhn": _svhn, "tiny_imagenet": _tiny, "domainnet_full": _domainnet}[name]()


def offered(name, server):
    """The data set of the catalog, as a server offers a tiny one: {path: bytes} is added to it."""
    files, made = [], contents(name)
    for file in catalog.PUBLISHED[name].files:
        content = made[file.name]
        server.files[f"/{name}/{file.name}"] = content
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        address = f"{server.address}/{name}/{file.name}"
        files.append(file._replace(size=len(content), checksum=checksum, addresses=(address,)))
    return catalog.PUBLISHED[name]._replace(files=tuple(files))


def zipped(files):
    """A zip archive of {path: bytes}."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return out.getvalue()


def image(seed, form="PNG", side=16):
    """The bytes of an image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def _cifar(release):
    names = [f"c{n}".encode() for n in range(release.num_classes)]
    parts = {release.meta: {release.label_names.decode(): [name.decode() for name in names]}}
    for n, part in enumerate((*release.train, release.test)):
        labels = {release.labels.decode(): [n % 10, 1]}
        parts[part] = {**labels, "data": FLAT[n % 5 : n % 5 + 2]}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for part, value in parts.items():
            content = python2(value)
            info = tarfile.TarInfo(f"{release.folder}/{part}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return {release.archive: out.getvalue()}


def _idx(file):
    shape = (20, 28, 28) if "images" in file else (20,)
    array = (np.arange(np.prod(shape)) % 10).reshape(shape).astype(np.uint8)
    head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def _texts(name):
    if name == "ag_news":
        return {file: b'"3","Title","Words."\n"1","T","W"\n' * 2 for file in AG_NEWS_FILES}
    rows = b'"0","1","Mon","NO_QUERY","ann","so sad"\n"4","2","Tue","NO_QUERY","bob","good \xe9"\n'
    return {"trainingandtestdata.zip": zipped(dict.fromkeys(SENTIMENT140_FILES, rows))}


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
        files[f"train/{name}/images/{name}_0.JPEG"] = image(n, "JPEG", 64)
        files[f"val/images/val_{n}.JPEG"] = image(9 + n, "JPEG", 64)
    inner = {f"tiny-imagenet-200/{path}": content for path, content in files.items()}
    return {"tiny-imagenet-200.zip": zipped(inner)}


def _domainnet():
    made = {}
    for n, domain in enumerate(domainnet.RELEASE.domains):
        paths = [f"{domain}/{name}/{domain}_{i}.png" for i in range(2) for name in ("cat", "dog")]
        images = {path: image(10 * n + i) for i, path in enumerate(paths)}
        made[f"{domain}.zip"] = zipped(images)
        lines = [f"{path} {i % 2}\n" for i, path in enumerate(paths)]
        made[f"{domain}_train.txt"] = "".join(lines[:2]).encode()
        made[f"{domain}_test.txt"] = "".join(lines[2:]).encode()
    return made
