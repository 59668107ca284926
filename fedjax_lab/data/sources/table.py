"""A table of your own, CSV, TSV or Parquet: columns of numbers and categories, and a target.

  numbers      as they are; a missing one is the mean of the column in the training rows
  categories   columns of text or true and false: one column of 0 and 1 for each value that the
               training rows have; a missing or a new value has only zeros
  missing      columns of numbers with missing values have a second column, 1 where one is missing

Training rows are those outside of the test set and of the unseen domain. config.data.normalize is
`standard` for a table: all columns have mean 0 and standard deviation 1 in the training rows.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import normalize, safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.places import path_of
from fedjax_lab.data.sources import arrays
from fedjax_lab.errors import BadInput, check_below_one, cut, missing, nearest, printable, quoted

ENDINGS = {".csv": ",", ".tsv": "\t", ".parquet": ""}  # with their separators
REMEDY = "write it as a CSV, TSV or Parquet file"
INDEX = "__index_level_"  # beginning of the column with the index of a DataFrame in Parquet
MOST_VALUES = 1000  # of a category; more are refused as mistakes


def table(
    *,
    path: str,
    target: str,
    client: str = "",
    domain: str = "",
    split: str = "",
    drop: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    test: float = 0.2,
    test_seed: int = 0,
    unseen: str = "",
    normalize: str = "standard",
) -> Dataset:
    """Examples x [R, D], one for each row of the table.

    Args:
      path: a .csv, .tsv or .parquet file, whose first line has the names of the columns.
      target: the column to predict, or several, separated by commas. Text and true or false become
        classes in alphabetic order; numbers stay as they are: see config.task.
      client: the column with the client of each row, for partition by_client; empty: none.
      domain: the column with the domain of each row; empty: there is a single domain.
      split: the column that says which rows are test rows: "train" or "test", or 0 and 1.
      drop: further columns that are not used, such as numbers of rows.
      categories: columns of numbers that are categories.
      test: the share of the rows that are drawn as test rows, if there is no `split`.
      test_seed: the seed of the draw.
      unseen: config.data.unseen, a domain that no client holds.
      normalize: config.data.normalize.

    Raises:
      BadInput: a file or column is missing or cannot be used.
    """
    file = path_of(path, "name a .csv, .tsv or .parquet file with --config.data.path")
    check_below_one("data.test", test)
    columns, targets = read(file), [name.strip() for name in target.split(",")]
    roles = {"client": client, "domain": domain, "split": split}
    roles = {role: name for role, name in roles.items() if name}
    _check_names(file, columns, [*targets, *roles.values(), *drop], categories)
    members = {role: _names(file, name, columns[name]) for role, name in roles.items()}
    members |= _labels(file, {name: columns[name] for name in targets})
    rows = len(members["y"])
    is_test = _is_test(file, members.get("split"), rows, test, test_seed)
    members["split"] = is_test.astype(int)
    training = ~is_test & (members["domain"] != unseen if domain else True)
    if unseen and not domain:
        raise BadInput(f"config.data.unseen={unseen} needs config.data.domain, a column's name")
    if not training.any() or not is_test.any():
        raise BadInput(
            f"{file}: {is_test.sum()} of {rows} rows are test rows, {training.sum()} training rows;"
            " set config.data.test, split or unseen so that there are some of both"
        )
    used = set(columns) - {*targets, *roles.values(), *drop}
    encoded = [
        _encoded(file, name, columns[name], name in categories, training)
        for name in columns
        if name in used
    ]
    if not encoded:
        raise BadInput(f"{file} has no columns besides the target; a model needs some")
    x = np.concatenate([each.values for each in encoded], 1)
    made = arrays.dataset_of(file, x, members, "split", arrays.is_test)
    return made._replace(test_is_drawn=not split, remarks=_remarks(file, members, encoded, target))


def _check_names(file, columns, used, categories):
    """Raises BadInput unless these columns exist, and each is used for one purpose."""
    for name in (*used, *categories):
        if name not in columns:
            raise BadInput(f"{file} has no column {quoted(name)}; {nearest(name, columns)}")
        if used.count(name) > 1:
            raise BadInput(f"{file}: the column {quoted(name)} is named for two purposes; drop one")


class Encoded(NamedTuple):
    """A column of the table as columns of the examples."""

    name: str
    values: np.ndarray  # [R, columns] float32, or float64 where float32 merges different numbers
    what: str  # in words
    missing: int  # number of rows without a value


def read(file: Path) -> dict[str, Any]:
    """The columns of a table by name, as arrays of pyarrow. Raises BadInput if it is damaged."""
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError as error:
        raise missing(error, "table") from error
    if file.suffix not in ENDINGS:
        raise BadInput(f"{file}: a table must end in {', '.join(ENDINGS)}")
    with safe.reading(file, REMEDY):
        safe.check_regular(file)
        try:
            if file.suffix == ".parquet":
                size = parquet.read_metadata(file)
                safe.check_memory(8 * size.num_rows * size.num_columns)  # also of repeated numbers
                made = parquet.read_table(file)
                made = made.select([n for n in made.column_names if not n.startswith(INDEX)])
            else:
                options = csv.ConvertOptions(strings_can_be_null=True)
                parsing = csv.ParseOptions(delimiter=ENDINGS[file.suffix])
                made = csv.read_csv(file, parse_options=parsing, convert_options=options)
            names = [name.strip() for name in made.column_names]
        except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise BadInput(f"{file} cannot be read ({reason}): {REMEDY}, in UTF-8") from error
    if not made.num_rows:
        raise BadInput(f"{file} has no rows")
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{file} has two columns {quoted(name)}; rename one")
    return {name: _plain(column) for name, column in zip(names, made.columns, strict=True)}


def _plain(column):
    """A column in one array; the categories of pandas as text."""
    from pyarrow import types

    column = column.combine_chunks()
    is_text = types.is_string_view(column.type)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast("string") if is_text else column


def _kind(column):
    """The kind of a column: "number", "text", "flag" or "empty"; of others the type of pyarrow."""
    from pyarrow import types

    kinds = {
        "number": types.is_integer(column.type) or types.is_floating(column.type),
        "text": types.is_string(column.type) or types.is_large_string(column.type),
        "flag": types.is_boolean(column.type),
        "empty": types.is_null(column.type),
    }
    return next((kind for kind, holds in kinds.items() if holds), str(column.type))


def _numbers(column):
    """The numbers of a column [R] float64; NaN where one is missing."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)


def _names(file, name, column):
    """The values of a column as text [R]. Raises BadInput if one is missing."""
    texts = ["nan" if value is None else str(value) for value in column.to_pylist()]
    if "nan" in texts:
        row = texts.index("nan") + 1
        raise BadInput(f"{file}: row {row} has no value in the column {quoted(name)}; fill it in")
    return np.array(texts)


def _labels(file, columns):
    """The arrays y [R] or [R, T], and classes unless the targets are numbers."""
    each = {}
    for name, column in columns.items():
        if (kind := _kind(column)) not in ("number", "text", "flag"):
            raise BadInput(
                f"{file}: the target {quoted(name)} has values of type {kind}; convert them to"
                " numbers or text"
            )
        names = _names(file, name, column)
        is_number = kind == "number" or (kind == "flag" and len(columns) > 1)
        each[name] = _numbers(column) if is_number else names
    if len(each) == 1:
        (y,) = each.values()
        return _as_labels(y)
    if any(y.dtype.kind == "U" for y in each.values()):
        raise BadInput(f"{file}: several targets must be columns of numbers or flags")
    y, names = np.stack([*each.values()], 1), np.array([*each])
    whole = np.isin(y, (0, 1)).all()
    return {"y": y.astype(np.int32), "classes": names} if whole else {"y": y}


def _as_labels(y):
    if y.dtype.kind == "U":
        classes, numbers = np.unique(y, return_inverse=True)
        return {"y": numbers, "classes": classes}
    whole = (y == np.round(y)).all() and 0 <= y.min() <= y.max() < arrays.MOST_CLASSES
    return {"y": y.astype(np.int32) if whole else y}


def _is_test(file, split, rows, test, seed):
    """The flags of the test rows [R] bool."""
    if split is not None:
        entries = split.astype(int) if np.isin(split, ("0", "1")).all() else split
        return arrays.is_test(file, entries)
    return arrays.random_test_rows(rows, test, seed)


def _encoded(file, name, column, is_category, training):
    """A column as one or several columns of numbers."""
    if (kind := _kind(column)) == "empty":
        raise BadInput(f"{file}: the column {quoted(name)} has no values; add it to data.drop")
    if kind in ("text", "flag") or is_category:
        return _of_category(file, name, column, training)
    if kind != "number":
        raise BadInput(
            f"{file}: the column {quoted(name)} has values of {kind}, which are neither"
            " numbers nor text; convert it, or add it to data.drop"
        )
    values = _numbers(column)
    lacks = np.isnan(values)
    if lacks[training].all():
        raise BadInput(f"{file}: no training row has a value in {quoted(name)}; drop the column")
    arrays.finite(f"{file}, column {name}", "it", values[~lacks])
    given = np.asarray(column.drop_null().to_numpy(zero_copy_only=False))  # integers stay exact
    given = given if given.dtype.kind in "iu" else values[~lacks]
    kind = normalize.exact(f"{file}: numbers of the column {quoted(name)}", given[:, None]).dtype
    mean = values[training & ~lacks].mean()
    columns = [np.where(lacks, mean, values)] + ([lacks] if lacks.any() else [])
    return Encoded(name, np.stack(columns, 1).astype(kind), "numbers", int(lacks.sum()))


def _of_category(file, name, column, training):
    if (count := len(column.unique())) > MOST_VALUES:
        raise BadInput(
            f"{file}: the column {quoted(name)} has {count} different values; a category may have"
            f" {MOST_VALUES}: add it to data.drop, or name it as data.client"
        )
    values = np.array(["" if value is None else str(value) for value in column.to_pylist()])
    known = np.unique(values[training])
    known = known[known != ""]
    indicators = (values[:, None] == known).astype(np.float32)
    return Encoded(name, indicators, f"{len(known)} categories", int(column.null_count))


def _remarks(file, members, columns, target):
    """What was done with the columns, and with a target that is text or true and false."""
    rows = len(members["y"])
    numbers = sum(each.what == "numbers" for each in columns)
    text = f"{file.name}: {rows} rows; {numbers} columns of numbers"
    for each in columns:
        if each.what != "numbers":
            text += f", {each.name} as {each.what}"
    lacking = [f"{each.missing} in {each.name}" for each in columns if each.missing]
    if lacking:
        text += f"; missing values ({', '.join(lacking)}) are the mean of the training rows"
        if any(each.missing and each.what != "numbers" for each in columns):
            text += ", and zeros in categories"
    if "classes" not in members or members["y"].ndim > 1:
        return (text,)
    names = cut(printable(", ".join(members["classes"])), 80)
    return text, f"{printable(target)}: the classes are {names}, numbered from 0"
