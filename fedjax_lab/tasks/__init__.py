"""Tasks: what a model learns from the labels of its examples, one file each.

A task is a function (labels, *, settings) -> `Objective`, where `labels` is a `Labels`.
"""

from typing import NamedTuple

import numpy as np

from fedjax_lab.data.dataset import IGNORED
from fedjax_lab.errors import BadInput


class Labels(NamedTuple):
    """The labels from which a task makes its objective."""

    y: np.ndarray  # [N, ...] of the training examples
    classes: tuple[str, ...]  # names of the classes, or of the columns of y
    others: np.ndarray = np.zeros(0)  # [., ...] of all other examples, which are only checked
    class_bytes: np.ndarray | None = None  # [K], bytes of text of each class that is a token

    @property
    def every(self) -> np.ndarray:
        """The labels of all examples."""
        return np.concatenate([self.y, self.others]) if len(self.others) else self.y


def check_labels(task: str, y: np.ndarray, kinds: str, axes: tuple[int, ...], expected: str):
    """Raises BadInput, which names the task that fits, unless these are labels of a task.

    kinds: the kinds of NumPy types that labels may have, such as "iu" for integers.
    axes: the numbers of axes that y may have. expected: the labels in words.
    """
    if y.dtype.kind in kinds and y.ndim in axes:
        return
    shape = list(y.shape[1:])
    raise BadInput(
        f"config.task.name={task} needs {expected}; a label of these data is {y.dtype}{shape}:"
        f" {_fitting(y)}"
    )


def _fitting(y):
    """The tasks that may fit labels of this type and shape, in words."""
    if y.dtype.kind == "f" and y.ndim < 3:
        of = "numbers" if y.ndim == 1 else "numbers in several columns"
        if np.all(y % 1 == 0):
            return f"convert classes to whole numbers, y.astype(int), or set {REGRESSION} for {of}"
        return f"set {REGRESSION} for {of}"
    if y.ndim == 1:
        fitting = "classification for classes, binary for 0 and 1, regression for amounts"
        return f"set --config.task.name={fitting}"
    if y.ndim == 2:
        return "set --config.task.name=multilabel for columns of 0 and 1, tokens for sequences"
    if y.shape[3:] == (1,):
        return "remove the last axis of masks [H, W, 1], as y[..., 0] does"
    return "set --config.task.name=segmentation for a class of each pixel, [H, W], a whole number"


REGRESSION = "--config.task.name=regression"


def check_indicators(task: str, y: np.ndarray) -> None:
    """Raises BadInput unless all labels are 0 or 1."""
    wrong = (y != 0) & (y != 1)
    if wrong.any():
        fitting = "set --config.task.name=classification for several classes"
        if y.ndim > 1 or (y[wrong] == IGNORED).all():
            fitting = f"replace the others, such as {IGNORED} for unknown ones"
        raise BadInput(
            f"config.task.name={task} needs labels of 0 and 1, but one of these data is"
            f" {y[wrong].flat[0]}; {fitting}"
        )
