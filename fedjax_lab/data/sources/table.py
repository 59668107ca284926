"""A table of your own, CSV, TSV or Parquet: columns of numbers and categories, and a target.

  numbers      as they are; a missing one is the mean of the column in the training rows
  categories   columns of text or true and false: one column of 0 and 1 for each value that the
               training rows have; a missing or a new value has only zeros
  missing      columns of numbers with missing values have a second column, 1 where one is missing

Training rows are those outside of the test set and of the unseen domain. config.data.normalize is
`standard` for a table: all columns have mean 0 and standard deviation 1 in the training rows.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import held_out, leaks, precision
from fedjax_lab.data.dataset import Dataset, are_numerals
from fedjax_lab.data.formats import typed_columns
from fedjax_lab.data.formats.columns import as_name, sorted_names
from fedjax_lab.data.formats.typed_columns import check_text, kind_of, numbers_of
from fedjax_lab.data.places import path_of
from fedjax_lab.data.sources import arrays
from fedjax_lab.errors import BadInput, cut, nearest, printable, quoted
from fedjax_lab.ranges import BelowOne, NotNegative, checked

MOST_VALUES = 1000  # of a category; more are refused as mistakes


@checked("data")
def table(
    *,
    path: str,
    target: str,
    client: str = "",
    domain: str = "",
    split: str = "",
    group: str = "",
    drop: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    test: BelowOne = 0.2,
    test_seed: NotNegative[int] = 0,
    unseen: str = "",
    normalize: str = "standard",
) -> Dataset:
    """Examples x [R, D], one for each row of the table.

    Args:
      path: a .csv, .tsv or .parquet file, whose first line has the names of the columns.
      target: the column to predict, or several, separated by commas. Text and true or false become
        classes in alphabetic order; numbers stay as they are: see config.task.
      client: the column with the client of each row, for partition by_client; empty: none. The
        columns client, domain, split, group and categories are read as text: 07 is not 7.
      domain: the column with the domain of each row; empty: there is a single domain.
      split: the column that says which rows are test rows: "train" or "test", or 0 and 1.
      group: the column with groups, such as patients, of which none has training and test rows.
      drop: further columns that are not used, such as numbers of rows.
      categories: columns of numbers that are categories. A target among them is one of classes.
      missing: marks of missing values, such as ?, besides empty cells and, in CSV and TSV files,
        NA, N/A, NaN, NULL and the like, which may be names of clients, domains and groups.
      test: the share of the rows of each client, domain and class that are drawn as test rows, if
        there is no `split`.
      test_seed: the seed of the draw.
      unseen: config.data.unseen, a domain that no client holds.
      normalize: config.data.normalize.

    Raises:
      BadInput: a file or column is missing or cannot be used.
    """
    file = path_of(path, "name a .csv, .tsv or .parquet file with --config.data.path")
    targets = [name.strip() for name in target.split(",")]
    named = {"client": client, "domain": domain, "split": split, "group": group}
    roles = {role: name for role, name in named.items() if name}
    as_text, marks = {*roles.values(), *categories}, {as_name(mark) for mark in missing}
    columns = typed_columns.read(file, as_text, marks)
    _check_names(file, columns, [*targets, *roles.values(), *drop], categories)
    for name in roles.values():
        typed_columns.check_exact(file, name, columns[name])
    members = {role: _names(file, name, columns[name]) for role, name in roles.items()}
    members |= _labels(file, {name: columns[name] for name in targets}, categories)
    draw = partial(held_out.with_share, share=test, seed=test_seed)
    rows = np.arange(len(members["y"]))
    made = arrays.dataset_of(file, rows, members, "split", _is_test, draw)
    training = ~made.test & _is_seen(members.get("domain"), unseen)
    if not training.any():
        raise BadInput(
            f"{file}: all rows are test rows or of the domain {unseen}; set config.data.test, split"
            " or unseen so that there are some training rows"
        )
    used = [name for name in columns if name not in {*targets, *roles.values(), *drop}]
    encoded = [_encoded(file, name, columns[name], name in categories, training) for name in used]
    if not encoded:
        raise BadInput(f"{file} has no columns besides the target; a model needs some")
    x = np.concatenate([each.values for each in encoded], 1)
    return made._replace(x=x, remarks=_remarks(file, made, columns, encoded, target))


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


def _names(file, name, column):
    """The values of a column as text [R]. Raises BadInput if one is missing."""
    texts = _texts(column)
    if "" in texts:
        row = texts.index("") + 1
        raise BadInput(
            f"{file}: row {row} has no value in the column {quoted(name)}; fill it in, or leave out"
            " the row"
        )
    return np.array(texts)


def _texts(column):
    """The values of a column as text, "" where one is missing."""
    values = column.to_pylist()
    return ["" if value is None or value != value else as_name(value) for value in values]


def _check_finite(file, name, values):
    """Raises BadInput if one of the numbers [R] is infinite in float32; NaN is a missing one."""
    infinite = np.abs(values) > np.finfo(np.float32).max
    if infinite.any():
        row = infinite.argmax()
        raise BadInput(
            f"{file}: row {row + 1} has {values[row]:g} in the column {quoted(name)}, which is"
            " infinite or beyond float32; correct it, or leave out the row"
        )


def _labels(file, columns, categories):
    """The arrays y [R] or [R, T], and classes unless the targets are numbers."""
    each = {}
    for name, column in columns.items():
        if (kind := kind_of(column)) not in ("number", "text", "flag"):
            raise BadInput(
                f"{file}: the target {quoted(name)} has values of type {kind}; convert them to"
                " numbers or text"
            )
        if kind == "text" and name not in categories:
            check_text(file, name, column)
        each[name] = _names(file, name, column)
        is_number = kind == "number" or (kind == "flag" and len(columns) > 1)
        if is_number and name not in categories:
            each[name] = numbers_of(column)
            _check_finite(file, name, each[name])
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
        classes = np.array(sorted_names({*y.tolist()}))
        order = np.argsort(classes)
        return {"y": order[np.searchsorted(classes, y, sorter=order)], "classes": classes}
    whole = (y == np.round(y)).all() and np.abs(y).max() < arrays.HIGHEST
    return {"y": y.astype(np.int32) if whole else y}


def _is_test(file, split):
    """The flags of the test rows [R] bool."""
    for train, test in (("0", "1"), ("train", "test")):
        if np.isin(split, (train, test)).all():
            return split == test
    row = np.isin(split, ("train", "test"), invert=True).argmax()
    raise BadInput(
        f"{file}: split is {quoted(str(split[row]))} in row {row + 1}; all rows must have train or"
        " test, or all 0 or 1"
    )


def _is_seen(domains, unseen):
    """Whether each row is outside of the unseen domain; domains: [R], None if there are none."""
    if unseen and domains is None:
        raise BadInput(f"config.data.unseen={unseen} needs config.data.domain, a column's name")
    return True if domains is None else domains != unseen


def _encoded(file, name, column, is_category, training):
    """A column as one or several columns of numbers."""
    if (kind := kind_of(column)) == "empty":
        raise BadInput(f"{file}: the column {quoted(name)} has no values; add it to data.drop")
    if kind == "text" and not is_category:
        check_text(file, name, column)
    if kind in ("text", "flag") or is_category:
        return _category_columns(file, name, column, training)
    if kind != "number":
        raise BadInput(
            f"{file}: the column {quoted(name)} has values of {kind}, which are neither"
            " numbers nor text; convert it, or add it to data.drop"
        )
    values = numbers_of(column)
    lacks = np.isnan(values)
    if lacks[training].all():
        raise BadInput(f"{file}: no training row has a value in {quoted(name)}; drop the column")
    _check_finite(file, name, values)
    given = np.asarray(column.drop_null().to_numpy(zero_copy_only=False))  # integers stay exact
    given = given if given.dtype.kind in "iu" else values[~lacks]
    kind = precision.exact(f"{file}: numbers of the column {quoted(name)}", given[:, None]).dtype
    mean = values[training & ~lacks].mean()
    columns = [np.where(lacks, mean, values)] + ([lacks] if lacks.any() else [])
    return Encoded(name, np.stack(columns, 1).astype(kind), "numbers", int(lacks.sum()))


def _category_columns(file, name, column, training):
    if (count := len(column.unique())) > MOST_VALUES:
        raise BadInput(
            f"{file}: the column {quoted(name)} has {count} different values; a category may have"
            f" {MOST_VALUES}: add it to data.drop, or name it as data.client"
        )
    values = np.array(_texts(column))
    known = np.unique(values[training])
    known = known[known != ""]
    indicators = (values[:, None] == known).astype(np.float32)
    return Encoded(name, indicators, f"{len(known)} categories", int((values == "").sum()))


def _remarks(file, made, columns, encoded, target):
    """What was done with the columns, and with a target that is text or true and false."""
    numbers = sum(each.what == "numbers" for each in encoded)
    text = f"{file.name}: {len(made.y)} rows; {numbers} columns of numbers"
    for each in encoded:
        if each.what != "numbers":
            text += f", {each.name} as {each.what}"
    lacking = [f"{each.missing} in {each.name}" for each in encoded if each.missing]
    if lacking:
        text += f"; missing values ({', '.join(lacking)}) are the mean of the training rows"
        if any(each.missing and each.what != "numbers" for each in encoded):
            text += ", and zeros in categories"
    ids = [
        quoted(each.name)
        for each in encoded
        if each.what == "numbers"
        and leaks.ids_that_predict(numbers_of(columns[each.name])[:, None], made.y)
    ]
    warned = (leaks.remark_on_ids(ids) + " (data.drop)",) if ids else ()
    if made.y.ndim > 1 or are_numerals(made.classes):
        return (text, *warned)
    names = cut(printable(", ".join(made.classes)), 80)
    return text, *warned, f"{printable(target)}: the classes are {names}, numbered from 0"
