"""Images listed in a table, with columns for label, user, domain and split.

Many medical data sets with natural centers have this form. FLamby's Fed-ISIC2019 (Ogier du Terrail
et al., NeurIPS 2022) is read with path=train_test_split,
folder=ISIC_2019_Training_Input_preprocessed, label=target, client=center, split=fold.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_lab.data import places, safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import Side
from fedjax_lab.data.formats.columns import as_name, check, positions, sorted_names
from fedjax_lab.data.formats.image_parts import Color, Fit, Part, gather, kind_of_split, make_look
from fedjax_lab.data.formats.images import Split, image_source
from fedjax_lab.data.formats.layouts import ENDINGS
from fedjax_lab.data.formats.text_tables import decoded as text_of
from fedjax_lab.data.formats.text_tables import lines_of
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import BadInput, quoted

VERSION = 1  # of the pixels; increment it with every change that alters a pixel
DELIMITERS = ",", "\t", ";"
REMEDY = (
    "config.data.path takes a CSV file with a header; config.data.image and config.data.label name"
    " its columns of image files and labels"
)


@image_source(REMEDY)
def image_table(
    *,
    path: str,
    folder: str = "",
    image: str = "image",
    label: str = "label",
    client: str = "",
    domain: str = "",
    split: str = "",
    group: str = "",
    size: Side = 32,
    color: Color = "rgb",
    resize: Fit = "stretch",
) -> Dataset:
    """The images [size, size, 3 or 1] that a CSV file lists; the settings name its columns.

    path: the CSV file, with a header; the delimiter may be a comma, a tab or a semicolon.
    folder: the folder to which the image file names are relative; empty: that of the CSV file.
    image: the column with the names of the image files, which may lack the file extension.
    label: the column with the classes, as names or numbers.
    client: the column with the natural user of each image, such as its center; empty: none.
    domain: the column with the domain of each image; empty: there is one domain.
    split: the column with train, test or val; empty: all images are training examples. Validation
        images are test examples if there are no test images, and training examples otherwise.
    group: the column with groups of images, such as patients, that config.data.test never divides.
    size: the side of an image in pixels.
    color: rgb or gray.
    resize: stretch, crop or pad, as in `image_folders`.

    Classes, users and domains are sorted, numerically if all are natural numbers. Decoded images
    are cached as in `images.decoded`. Raises BadInput if anything is missing or damaged.
    """
    look, table = make_look(size, color, resize), places.path_of(path, REMEDY)
    columns = {"image": image, "label": label}
    columns |= {"client": client, "domain": domain, "split": split, "group": group}
    rows = _rows(table, {key: name for key, name in columns.items() if name})
    classes = sorted_names({row["label"] for row in rows})
    where = Path(folder).expanduser() if folder else table.parent
    parts, group_of = _parts(table, where, rows, classes)
    domains = sorted_names({part.domain for part in parts})
    listed = hashlib.sha256(repr(rows).encode()).hexdigest()[:8]  # users affect the images' order
    dataset = gather(f"image_table-v{VERSION}-{listed}", parts, classes, domains, look)
    origins = [group_of[file] for file in dataset.files]
    if len(set(origins)) == len(origins):
        return dataset
    return dataset._replace(origin=np.unique(origins, return_inverse=True)[1].astype(np.int32))


def _rows(table: Path, columns: Mapping[str, str]) -> list[dict[str, str]]:
    """The values of these columns in each line of a table, by the keys of the columns."""
    with safe.reading(table):
        text = text_of(table, "utf-8")
        separator = max(DELIMITERS, key=text.partition("\n")[0].count)
        with contextlib.closing(lines_of(table, text, separator)) as lines:
            names = [name.strip() for name in next(lines, (0, []))[1]]
            at = {key: _place(table, key, name, names) for key, name in columns.items()}
            rows = [
                {key: _value(table, number, line, names, place) for key, place in at.items()}
                for number, line in lines
            ]
    if not rows:
        raise Fault(f"{table} lists no images")
    return rows


def _place(table: Path, key: str, name: str, names: Sequence[str]) -> int:
    """The position of a column in the header."""
    check(key, name, names, str(table))
    if names.count(name) > 1:
        raise BadInput(f"{table} has two columns {quoted(name)} (config.data.{key}); rename one")
    return names.index(name)


def _value(table: Path, number: int, line: Sequence[str], names: Sequence[str], at: int) -> str:
    """The value of a column in a line. Raises a Fault if it is empty or not printable."""
    value = as_name(line[at]) if at < len(line) else ""
    if not value or not value.isprintable():
        what = f"{quoted(value)} for {quoted(names[at])}" if value else f"no {quoted(names[at])}"
        raise Fault(f"{table}: line {number} has {what}")
    return value


def _parts(
    table: Path, folder: Path, rows: Sequence[Mapping[str, str]], classes: Sequence[str]
) -> tuple[list[Part], dict[str, str]]:
    """The images, grouped by domain, split and user; and the group of each file, or the file."""
    images: dict[tuple[str, str, str], Split] = {}
    known: dict[str, tuple[str, str]] = {}
    number = positions([row["label"] for row in rows], classes).tolist()
    for row, label in zip(rows, number, strict=True):
        split = kind_of_split(row.get("split", "train"), table)
        key = row.get("domain", "image_table"), split, row.get("client", "")
        file = _file(table, folder, row["image"])
        facts = split, row.get("group", str(file))
        for one, other in zip(known.setdefault(str(file), facts), facts, strict=True):
            if one != other:
                raise BadInput(
                    f"{table} lists {file} for {one} and {other}, but an image has only one split"
                    " and one group"
                )
        images.setdefault(key, []).append((file, label))
    parts = [Part(each, domain, kind, user) for (domain, kind, user), each in images.items()]
    return parts, {file: group for file, (_, group) in known.items()}


def _file(table: Path, folder: Path, name: str) -> Path:
    """The file of an image; the table may omit the file extension."""
    file = folder / name
    if name.lower().endswith(ENDINGS):
        return file
    paths = (Path(f"{file}{ending}") for ending in ENDINGS)
    existing = next((path for path in paths if path.is_file()), None)
    if existing is None:
        kinds = ", ".join(ENDINGS)
        raise BadInput(f"{table}: there is no image {file} ({kinds}); see config.data.folder")
    return existing
