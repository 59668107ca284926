"""Images that a table lists, with a column for each of label, center, domain and split.

So come many medical sets with natural centers. FLamby's Fed-ISIC2019 (Ogier du Terrail et al.,
NeurIPS 2022) is read with path=train_test_split, folder=ISIC_2019_Training_Input_preprocessed,
label=target, client=center, split=fold.
"""

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.image_parts import SPLITS, Part, gather, make_look, sorted_names
from fedjax_lab.data.images import Split, decoded
from fedjax_lab.data.layouts import ENDINGS
from fedjax_lab.errors import BadInput, nearest, quoted

VERSION = 1  # of the pixels: to be raised with every change that alters one
DELIMITERS = ",", "\t", ";"
REMEDY = (
    "config.data.path takes a CSV file with a header, config.data.image and config.data.label name"
    " the columns with the files of the images and their labels"
)


@decoded
def image_table(
    *,
    path: str,
    folder: str = "",
    image: str = "image",
    label: str = "label",
    client: str = "",
    domain: str = "",
    split: str = "",
    size: int = 32,
    color: str = "rgb",
    resize: str = "stretch",
) -> Dataset:
    """The images [size, size, .] that a CSV file lists; each of its columns has the name it says.

    path: the CSV file, with a header; tabs or semicolons may stand for its commas.
    folder: the one that the names of the images begin in; empty: that of the CSV file.
    image: the column with the names of the files, whose endings may be left out.
    label: the column with the classes, as names or numbers.
    client: the column with the natural user of each image, such as its center; empty: none.
    domain: the column with the domain of each image; empty: there is one domain.
    split: the column with train, test or val; empty: all images are training examples. Validation
        images are test examples where there are no test images, or else training examples.
    color: rgb or gray.
    resize: stretch, crop or pad, as in `image_folders`.

    Classes, users and domains are sorted, as numbers if all are whole numbers. The images are kept
    as `images.decoded` says. Raises BadInput for what is missing or damaged.
    """
    look, table = make_look(size, color, resize), Path(path).expanduser()
    if not path:
        raise BadInput(f"data.path is empty: {REMEDY}")
    columns = {"image": image, "label": label}
    columns |= {"client": client, "domain": domain, "split": split}
    rows = _rows(table, {key: name for key, name in columns.items() if name})
    classes = sorted_names({row["label"] for row in rows})
    parts = _parts(table, Path(folder).expanduser() if folder else table.parent, rows, classes)
    domains = sorted_names({part.domain for part in parts})
    listed = hashlib.sha256(repr(rows).encode()).hexdigest()[:8]  # who is whose orders the images
    return gather(f"image_table-v{VERSION}-{listed}", parts, classes, domains, look, REMEDY)


def _rows(table: Path, columns: Mapping[str, str]) -> list[dict[str, str]]:
    """Of each line of a table what these columns have, under the columns' keys."""
    with safe.reading(table, REMEDY):
        text = safe.content(table).decode("utf-8-sig")
        header = text.partition("\n")[0]
        lines = csv.reader(
            io.StringIO(text, newline=""), delimiter=max(DELIMITERS, key=header.count)
        )
        names = [name.strip() for name in next(lines, [])]
        places = {key: _place(table, key, name, names) for key, name in columns.items()}
        rows = [
            {key: _value(table, lines.line_num, line, names, at) for key, at in places.items()}
            for line in lines
            if line
        ]
    if not rows:
        raise BadInput(f"{table} lists no images: {REMEDY}")
    return rows


def _place(table: Path, key: str, name: str, names: Sequence[str]) -> int:
    """The place of a column in the header."""
    if name not in names:
        near = nearest(name, [each for each in names if each and each.isprintable()])
        raise BadInput(f"{table} has no column {quoted(name)} (config.data.{key}); {near}")
    if names.count(name) > 1:
        raise BadInput(f"{table} has two columns {quoted(name)} (config.data.{key}); rename one")
    return names.index(name)


def _value(table: Path, number: int, line: Sequence[str], names: Sequence[str], at: int) -> str:
    """What a line has in a column; BadInput where that is nothing, or nothing that can be shown."""
    value = line[at].strip() if at < len(line) else ""
    if not value or not value.isprintable():
        what = f"{quoted(value)} for {quoted(names[at])}" if value else f"no {quoted(names[at])}"
        raise BadInput(f"{table}: line {number} has {what}: {REMEDY}")
    return value


def _parts(
    table: Path, folder: Path, rows: Sequence[Mapping[str, str]], classes: Sequence[str]
) -> list[Part]:
    """The images by domain, split and user."""
    number = {name: index for index, name in enumerate(classes)}
    images: dict[tuple[str, str, str], Split] = {}
    split_of: dict[Path, str] = {}
    for row in rows:
        named = row.get("split", "train")
        split = SPLITS.get(named.lower())
        if split is None:
            splits = ", ".join(SPLITS)
            raise BadInput(f"{table}: {quoted(named)} is none of the splits {splits}: {REMEDY}")
        key = row.get("domain", "image_table"), split, row.get("client", "")
        files, labels = images.setdefault(key, Split([], []))
        files.append(_file(table, folder, row["image"]))
        if split_of.setdefault(files[-1], split) != split:
            both = f"{split_of[files[-1]]} and {split}"
            raise BadInput(f"{table} lists {files[-1]} for {both}: an image has one split")
        labels.append(number[row["label"]])
    return [Part(split, *key) for key, split in images.items()]


def _file(table: Path, folder: Path, name: str) -> Path:
    """The file of an image, with the ending that the table may leave out."""
    file = folder / name
    if name.lower().endswith(ENDINGS):
        return file
    paths = (Path(f"{file}{ending}") for ending in ENDINGS)
    there = next((path for path in paths if path.is_file()), None)
    if there is None:
        kinds = ", ".join(ENDINGS)
        raise BadInput(f"{table}: there is no image {file} ({kinds}); see config.data.folder")
    return there
