"""What a person reads from a finished run: a table of its rows, and a confusion matrix."""

from typing import Any

import numpy as np

from fedjax_lab.errors import BadInput, missing
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.types import Objective


def frame(rows: list[dict]) -> Any:
    """Rows of metrics.jsonl as a DataFrame of pandas, with a column for each measure."""
    try:
        import pandas
    except ImportError as error:
        raise missing(error, "pandas") from error
    places = [{key: row.get(key) for key in ("round", "seed", "stage")} for row in rows]
    each = [place | metric_rows.numbers(row) for place, row in zip(places, rows, strict=True)]
    return pandas.json_normalize(each)


def check_confusable(objective: Objective, test_rows: Any) -> None:
    """Raises BadInput unless examples of a global test set are predicted to be of a class."""
    if test_rows is None:
        raise BadInput("confusion needs a global test set, and this run has none")
    if objective.correct is None or objective.name == "multilabel":
        raise BadInput(f"confusion needs classes, and task {objective.name} has none")


def confusion(objective: Objective, predictions: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The numbers [K, K] of labels by actual and by predicted class; negative labels are left out.

    predictions: the result of `loading.Run.predict` for examples with labels y [N, ...].
    """
    K = max(objective.outputs[-1], 2)  # a binary task has one output
    given = predictions.argmax(-1) if objective.has_classes else np.round(predictions).astype(int)
    counted = y >= 0
    return np.bincount(y[counted] * K + given[counted], minlength=K * K).reshape(K, K)
