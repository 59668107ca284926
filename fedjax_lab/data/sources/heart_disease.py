"""Heart disease of four hospitals (Detrano et al. 1989), as FLamby's Fed-Heart-Disease.

UCI's four files processed.HOSPITAL.data have 14 columns and no header. FLamby (Ogier du Terrail et
al., NeurIPS 2022, https://github.com/owkin/FLamby) leaves out the columns slope, ca and thal, and
then every patient with a missing value; 740 of 920 remain. The types of pain and of the
electrocardiogram become columns of 0 and 1 without their first value, so that there are 13 inputs.
A third of each hospital's patients are test examples, the same ones as FLamby's.
"""

import logging
from pathlib import Path

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.places import fetched_by_hand, locate
from fedjax_lab.data.safe import Fault

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
USED = 10  # the first columns; slope, ca and thal follow, and the disease: 0, or 1 to 4
CATEGORIES = {2: (2, 3, 4), 6: (1, 2)}  # column: values with a column of their own
TRAIN, SEED = 0.66, 43  # of the split of each hospital
LEAST = 3  # patients of a class in a hospital whose split keeps the shares of the classes


@source(fetched_by_hand("heart_disease"))
def heart_disease(
    *, folder: str = "", by_hospital: bool = True, normalize: str = "none"
) -> Dataset:
    """Heart disease: x [740, 13] float32 and labels y [740] int32, 1 for a disease.

    The hospitals are the natural users, and the domains.

    by_hospital: scales each column by the mean and standard deviation of the hospital's training
        patients, as FLamby does; False: the values of the files, for normalize=standard.
    folder: the folder of the files, or one with a folder heart_disease; empty: ~/.cache/fedjax_lab
        and data/ are searched.
    normalize: config.data.normalize.
    """
    where = find(folder).parent
    tables = [_read(where / f"processed.{name}.data") for name in HOSPITALS]
    whole = [table[~np.isnan(table).any(1)] for table in tables]
    for name, table, rows in zip(HOSPITALS, tables, whole, strict=True):
        if len(rows) < 2:
            raise Fault(f"{where / f'processed.{name}.data'} has fewer than two whole patients")
        logging.getLogger(__name__).info(
            "%s: %d of %d patients have no missing value", name, len(rows), len(table)
        )
    labels = [(rows[:, -1] > 0).astype(np.int32) for rows in whole]
    test = [_test(y) for y in labels]
    x = [_inputs(rows[:, :-1]) for rows in whole]
    if by_hospital:
        x = [_scaled(of, held) for of, held in zip(x, test, strict=True)]
    hospital = np.repeat(np.arange(len(HOSPITALS), dtype=np.int32), list(map(len, x)))
    return Dataset(
        x=np.concatenate(x).astype(np.float32),
        y=np.concatenate(labels),
        domain=hospital,
        test=np.concatenate(test),
        classes=("healthy", "ill"),
        domains=HOSPITALS,
        client=hospital,
        users=HOSPITALS,
    )


def find(folder: str) -> Path:
    """The file of the first hospital."""
    name = f"processed.{HOSPITALS[0]}.data"
    return locate(folder, (name, f"heart_disease/{name}"))


def _read(file: Path) -> np.ndarray:
    """The used columns and the disease of each patient [R, USED + 1]; a missing value is NaN."""
    rows = []
    with safe.reading(file, problem="is damaged"):
        lines = safe.lines(file)
    for number, line in enumerate(lines, 1):
        cells = line.strip().split(",")
        try:
            values = [np.nan if cell.strip() == "?" else float(cell) for cell in cells]
        except ValueError:
            values = []
        if len(values) != 14 or np.isinf(values).any() or np.isnan(values[-1]):
            raise Fault(f"{file}, line {number}: not 13 numbers, each or ?, and the disease")
        rows.append([*values[:USED], values[-1]])
    return np.array(rows)


def _test(y):
    """Flags of the test patients of a hospital, with the draw that FLamby makes."""
    from sklearn.model_selection import train_test_split

    stratify = y if np.bincount(y, minlength=2).min() >= LEAST else None
    _, held = train_test_split(
        np.arange(len(y)), test_size=1 - TRAIN, train_size=TRAIN, random_state=SEED,
        stratify=stratify,
    )  # fmt: skip
    test = np.zeros(len(y), bool)
    test[held] = True
    return test


def _inputs(columns):
    """The numbers [R, 8], followed by columns of 0 and 1 for CATEGORIES [R, 5]."""
    numbers = [j for j in range(USED) if j not in CATEGORIES]
    coded = [columns[:, [j]] == np.array(values) for j, values in CATEGORIES.items()]
    return np.concatenate([columns[:, numbers], *coded], 1)


def _scaled(x, test):
    """The inputs by mean and sample deviation of the training patients; constant ones stay 0."""
    train = x[~test]
    deviation = train.std(0, ddof=1)
    return (x - train.mean(0)) / np.where(deviation > 0, deviation, 1.0)
