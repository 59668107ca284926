"""The columns of a CSV, TSV or Parquet file, with the types of their cells."""

import contextlib
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.formats.text_tables import decoded, lines_of
from fedjax_lab.errors import BadInput, missing, quoted

ENDINGS = {".csv": ",", ".tsv": "\t", ".parquet": ""}  # with their separators
REMEDY = "write it as a CSV, TSV or Parquet file"
INDEX = "__index_level_"  # beginning of the column with the index of a DataFrame in Parquet
# Missing values in CSV and TSV files, besides empty cells, as pandas and pyarrow have them.
NULLS = frozenset(
    "#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|N/A|NA|NULL|NaN|n/a|nan|null"
    "".split("|")
)
NUMBER = re.compile(r"[+-]?(\d{1,15}|\d*\.\d+|\d+\.)([eE][+-]?\d+)?")  # without loss in float64
LONG = re.compile(r"[+-]?\d{16,}")
LIKE_A_NUMBER = re.compile(r"[^\w]*\d[\d\s.,']*([eE][+-]?\d+)?[^\w]*")  # also 1,200, 5 % and <5
LARGEST = 2**53  # up to which float64 has all whole numbers
FIRST = 1000  # rows whose type is tried first
SHOWN = 3  # cells in a message
BLOCK = 2**25  # bytes of a file that are read at once; a row must fit in them


def read(file: Path, as_text: Collection[str], marks: Collection[str]) -> dict[str, Any]:
    """The columns of a table by name, as arrays of pyarrow; texts without blanks around them.

    Args:
      file: a file with one of ENDINGS.
      as_text: columns whose cells are names. In CSV and TSV files, their own text counts.
      marks: marks of missing values, besides empty cells and, in the other columns of CSV and TSV
        files, NULLS.

    Raises:
      BadInput: the file is damaged, or has no rows or two columns of the same name.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise missing(error, "table") from error
    if file.suffix not in ENDINGS:
        raise BadInput(f"{file}: a table must end in {', '.join(ENDINGS)}")
    with safe.reading(file, REMEDY):
        safe.check_regular(file)
        try:
            made = _read_parquet(file) if file.suffix == ".parquet" else _read_lines(file)
            names = [name.strip() for name in made.column_names]
        except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(f"{file} cannot be read ({reason}): {REMEDY}, in UTF-8") from error
    if not made.num_rows:
        raise BadInput(f"{file} has no rows")
    if len(repeated := Counter(names)) < len(names):
        name, _ = repeated.most_common(1)[0]
        raise BadInput(f"{file} has two columns {quoted(name)}; rename one")
    columns = dict(zip(names, map(_plain, made.columns), strict=True))
    if file.suffix == ".parquet":
        return {name: _without(column, {"", *marks}) for name, column in columns.items()}
    for name, column in columns.items():
        is_text = name in as_text
        column = _without(column, {"", *marks, *(() if is_text else NULLS)})
        columns[name] = column if is_text else _without(_typed(column), marks)
    return columns


def _read_parquet(file):
    from pyarrow import parquet

    size = parquet.read_metadata(file)
    safe.check_memory(8 * size.num_rows * size.num_columns)  # also of repeated numbers
    made = parquet.read_table(file)
    return made.select([name for name in made.column_names if not name.startswith(INDEX)])


def _read_lines(file):
    """The table of a CSV or TSV file, whose cells are all text."""
    import pyarrow
    from pyarrow import csv

    _check_separator(file)
    parsing = csv.ParseOptions(delimiter=ENDINGS[file.suffix], newlines_in_values=True)
    blocks = csv.ReadOptions(block_size=BLOCK)
    with csv.open_csv(file, read_options=blocks, parse_options=parsing) as opened:
        kinds = dict.fromkeys(opened.schema.names, pyarrow.string())
    texts = csv.ConvertOptions(column_types=kinds)
    made = csv.read_csv(file, read_options=blocks, parse_options=parsing, convert_options=texts)
    _check_quotes(file, made)
    return made


def _check_separator(file):
    """Raises BadInput if the first line has another separator of cells than those of its ending."""
    with file.open("rb") as opened:
        first = opened.readline(BLOCK).decode("utf-8", "replace")
    other = next((each for each in ";\t|," if each in first), None)
    if other and ENDINGS[file.suffix] not in first:
        raise BadInput(
            f"{file}: the cells of its first line are separated by {other!r}; write it with commas"
            " as .csv or with tabs as .tsv, and numbers with decimal points"
        )


def _check_quotes(file, made):
    """Raises BadInput if rows are in a cell with lines, since its quotation mark is not closed.

    pyarrow takes text after a closing quotation mark as a part of the cell.
    """
    from pyarrow import compute

    if not any(compute.any(compute.match_substring(cells, "\n")).as_py() for cells in made.columns):
        return
    lines = lines_of(file, decoded(file, "utf-8"), ENDINGS[file.suffix])
    if sum(1 for _ in lines) - 1 != made.num_rows:
        raise BadInput(
            f"{file}: a quotation mark is not closed, or text follows a closing one; write"
            " quotation marks inside of quoted texts twice"
        )


def _plain(column):
    """A column in one array; the categories of pandas as text, and texts without blanks around."""
    from pyarrow import compute, types

    column = column.combine_chunks()
    is_text = types.is_string_view(column.type)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.cast("string") if is_text else column
    return compute.utf8_trim_whitespace(column) if kind_of(column) == "text" else column


def _without(column, marks):
    """The column, of text or numbers, without the cells that are one of these marks."""
    import pyarrow
    from pyarrow import compute, types

    kind, values = kind_of(column), list(marks)
    if kind == "number":
        values = [float(mark) for mark in marks if NUMBER.fullmatch(mark)]
    if kind not in ("number", "text") or not values:
        return column
    is_like_float64 = kind == "number" and not types.is_float32(column.type)
    compared = column.cast("float64", safe=False) if is_like_float64 else column
    marked = pyarrow.array(values).cast(compared.type, safe=False)  # -99.9 as float32 has it
    is_mark = compute.is_in(compared, value_set=marked)
    return compute.if_else(is_mark, pyarrow.scalar(None, column.type), column)


def _typed(column):
    """A column of text in the type that all of its cells have."""
    import pyarrow
    from pyarrow import compute

    if column.null_count == len(column):
        return pyarrow.nulls(len(column))
    numbers = (pyarrow.int64(), pyarrow.float64())
    others = (pyarrow.bool_(), pyarrow.timestamp("us"), pyarrow.timestamp("us", "UTC"))
    for kind in (*numbers, *others):
        with contextlib.suppress(pyarrow.ArrowInvalid):
            column[:FIRST].cast(kind)  # pyarrow needs long for a long column that has another type
            made = column.cast(kind)
            return column if kind in numbers and _is_lossy(column, made) else made
    for form in ("%H:%M", "%H:%M:%S"):
        with contextlib.suppress(pyarrow.ArrowInvalid):
            return compute.strptime(column, format=form, unit="s")
    return column


def _is_lossy(column, made):
    """Whether different long numbers, such as ids, are equal as real numbers."""
    texts = column.unique().to_pylist()
    if not any(text and LONG.fullmatch(text) for text in texts):
        return False
    return len(np.unique(numbers_of(made))) < len(texts)


def kind_of(column: Any) -> str:
    """The kind of a column: "number", "text", "flag" or "empty"; of others the type of pyarrow."""
    from pyarrow import types

    kinds = {
        "number": types.is_integer(column.type) or types.is_floating(column.type),
        "text": types.is_string(column.type) or types.is_large_string(column.type),
        "flag": types.is_boolean(column.type),
        "empty": types.is_null(column.type),
    }
    return next((kind for kind, holds in kinds.items() if holds), str(column.type))


def numbers_of(column: Any) -> np.ndarray:
    """The numbers of a column [R] float64; NaN where one is missing."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)


def check_exact(file: Path, name: str, column: Any) -> None:
    """Raises BadInput if a column of names has real numbers too large to be told apart."""
    from pyarrow import types

    if types.is_floating(column.type) and (np.abs(numbers_of(column)) >= LARGEST).any():
        raise BadInput(
            f"{file}: the column {quoted(name)} has real numbers of at least 2**53, which differ"
            " from those that were meant; write names as text"
        )


def check_text(file: Path, name: str, column: Any) -> None:
    """Raises BadInput if most cells of a column of text are numbers, with the other cells."""
    cells = column.to_pylist()
    present = [cell for cell in cells if cell is not None]
    alike = {cell: bool(LIKE_A_NUMBER.fullmatch(cell)) for cell in {*present}}
    if 2 * sum(alike[cell] for cell in present) <= len(present):
        return
    others = list(dict.fromkeys(cell for cell in present if not NUMBER.fullmatch(cell)))
    what, remedy = "all of its cells are numbers", "convert it to numbers"
    if others:
        rows = [
            f"{quoted(cell, 20)} ({cells.count(cell)} times, first in row {cells.index(cell) + 1})"
            for cell in others[:SHOWN]
        ]
        more = f" and {len(others) - SHOWN} others" * (len(others) > SHOWN)
        what = f"most of its cells are numbers, but not {', '.join(rows)}{more}"
        marks = [cell for cell in others if not alike[cell] and "," not in cell and len(cell) < 20]
        remedy = "correct them"
        if marks:  # --config.data.missing=1,200 would be the numbers 1 and 200
            remedy += (
                ", or name marks of missing values, such as"
                f" --config.data.missing={quoted(marks[0])}"
            )
        if all(map(LONG.fullmatch, others)):
            remedy = "they are too long to be told apart: name it as data.client or data.group"
    raise BadInput(
        f"{file}: the column {quoted(name)} is text: {what}; {remedy}; or add the column to"
        " data.categories if its values are names, or to data.drop"
    )
