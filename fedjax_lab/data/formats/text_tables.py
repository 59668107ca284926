"""Reads columns of text from tables: CSV, TSV, JSON lines and Parquet files."""

import contextlib
import csv
import io
import json
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedjax_lab.data import safe
from fedjax_lab.data.places import path_of
from fedjax_lab.errors import BadInput, nearest, quoted

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson", ".json")
OBJECTS = (*LINES, ".parquet")
ENDINGS = (*SEPARATORS, *OBJECTS)
REMEDY = "name another file, or another --config.data.encoding"
LONGEST = 2**24  # largest number of characters in a field


def read(
    file: Path, wanted: Sequence[str], header: bool = True, encoding: str = "utf-8"
) -> list[tuple[str, ...]]:
    """The values of these columns in each row, as text; numbers are converted.

    Args:
      file: a file with one of ENDINGS.
      wanted: names of columns, or their numbers from 1.
      header: whether the first line of a CSV or TSV file has the names of its columns.
      encoding: the encoding of a CSV or TSV file.

    Raises BadInput if the file or a column is missing or invalid.
    """
    with safe.reading(file, REMEDY, extra="text"):
        safe.check_regular(file)
        if file.suffix not in ENDINGS:
            raise BadInput(f"{file}: a table of texts must end in {', '.join(ENDINGS)}")
        if file.suffix in SEPARATORS:
            return _read_lines(file, wanted, header, encoding)
        if file.suffix in LINES:
            return _read_objects(file, wanted)
        return _read_parquet(file, wanted)


def _read_lines(file, wanted, header, encoding):
    """The columns of a CSV or TSV file."""
    text = decoded(file, encoding)
    with contextlib.closing(lines_of(file, text, SEPARATORS[file.suffix])) as rows:
        number, first = next(rows, (0, []))
        there = [name.strip() for name in first] if header else len(first)
        places = [_place(file, name, there) for name in wanted]
        kept = [] if header else [_cells(file, number, first, places)]
        return kept + [_cells(file, number, row, places) for number, row in rows]


def lines_of(file: Path, text: str, separator: str) -> Generator[tuple[int, list[str]]]:
    """The number, from 1, and the cells of each line of a table that is not empty.

    If quotation marks do not match in a table separated by tabs, they are parts of the texts, as
    such tables are often not quoted. Raises BadInput if they do not match in another table.
    """

    def reader(quoting):
        content = io.StringIO(text, newline="")
        return csv.reader(content, delimiter=separator, quoting=quoting, strict=True)

    limit, lines = csv.field_size_limit(LONGEST), reader(csv.QUOTE_MINIMAL)
    try:
        rows = enumerate([*lines] if separator == "\t" else lines, 1)
        yield from ((number, row) for number, row in rows if row)
    except csv.Error as error:
        if separator != "\t":
            raise BadInput(
                f"{file}: line {lines.line_num} cannot be read ({error}): a quotation mark before"
                " it or in it is not closed, or text follows a closing one; write quotation marks"
                " inside of quoted texts twice"
            ) from error
        rows = enumerate(reader(csv.QUOTE_NONE), 1)
        yield from ((number, row) for number, row in rows if row)
    finally:
        csv.field_size_limit(limit)


def decoded(file: Path, encoding: str) -> str:
    """The text of a file, without the byte order mark that spreadsheet programs write."""
    return safe.content(file).decode(encoding).removeprefix("\ufeff")


def splits(path: str, test_path: str, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """The files with the training and with the test examples (None if there are none).

    path: a file, or a folder with a file named train and optionally one named test.
    """
    where = path_of(path, "name a file of texts with --config.data.path")
    train, test = (where, None)
    if where.is_dir():
        train, test = (_named(where, name, endings) for name in ("train", "test"))
    if train is None:
        ends = ", ".join(endings)
        raise BadInput(f"{where} has no file train ({ends}); name a file with --config.data.path")
    return train, Path(test_path).expanduser() if test_path else test


def _named(folder, name, endings):
    """The file of that name in a folder; None if there is none."""
    files = (folder / f"{name}{ending}" for ending in endings)
    return next((file for file in files if file.exists()), None)


def _place(file, name, there):
    """The position of the column `name`, which may be a number from 1.

    there: the names of all columns, or their number if they have no names.
    """
    names = [] if isinstance(there, int) else there
    if name in names:
        return names.index(name)
    count = there if isinstance(there, int) else len(there)
    if name.isdecimal() and 1 <= int(name) <= count:
        return int(name) - 1
    if isinstance(there, int):
        raise BadInput(f"{file} has {count} columns without names, but no column {quoted(name)}")
    raise BadInput(f"{file} has no column {quoted(name)}; {nearest(name, names)}")


def _cells(file, number, row, places):
    if len(row) <= max(places):
        raise BadInput(f"{file}: row {number} has {len(row)} columns, not {max(places) + 1}")
    return tuple(row[place] for place in places)


def _read_objects(file, wanted):
    """The members of one JSON object per line."""
    rows = _numbered_objects(decoded(file, "utf-8"))
    return [tuple(_text(file, number, row, name) for name in wanted) for number, row in rows]


def _numbered_objects(text):
    """The number, from 1, and the JSON object of each line that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object; each line must be one")
            yield number, row


def objects(file: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file, or the objects of a JSON file: one per line, or a list of them.

    Raises BadInput if the file is missing or holds anything else.
    """
    with safe.reading(file, "name another file", extra="text"):
        safe.check_regular(file)
        if file.suffix == ".parquet":
            return _parquet_objects(file)
        if file.suffix not in LINES:
            raise BadInput(f"{file}: a file of records must end in {', '.join(OBJECTS)}")
        text = decoded(file, "utf-8")
        if not text.lstrip().startswith("["):
            return [row for _, row in _numbered_objects(text)]
        rows = json.loads(text)
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError("an element of its list is not a JSON object")
        return rows


def _text(file, number, row, name):
    """A member of an object as text."""
    if name not in row:
        keys = [key for key in row if isinstance(key, str)]
        raise BadInput(f"{file}: row {number} has no {quoted(name)}; {nearest(name, keys)}")
    return as_text(file, number, name, row[name])


def as_text(file: Path, number: int, name: str, value: Any) -> str:
    """A cell as text that UTF-8 can encode: unpaired surrogates are replaced."""
    if isinstance(value, (str, int, float)):
        return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    raise BadInput(f"{file}: {quoted(name)} of row {number} is not text but {quoted(value)}")


def _parquet_objects(file):
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        groups = range(opened.metadata.num_row_groups)
        safe.check_memory(sum(opened.metadata.row_group(i).total_byte_size for i in groups))
        return opened.read().to_pylist()


def _read_parquet(file, wanted):
    """The columns of a Parquet file."""
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        names = opened.schema_arrow.names
        places = [_place(file, name, names) for name in wanted]
        groups = range(opened.metadata.num_row_groups)
        safe.check_memory(sum(opened.metadata.row_group(i).total_byte_size for i in groups))
        named = [names[place] for place in places]
        return list(_rows(file, named, opened.read(columns=[*dict.fromkeys(named)])))


def _rows(file, names, table) -> Iterator[tuple[str, ...]]:
    columns = [table.column(name).to_pylist() for name in names]
    for number, row in enumerate(zip(*columns, strict=True), 1):
        yield tuple(as_text(file, number, *cell) for cell in zip(names, row, strict=True))
