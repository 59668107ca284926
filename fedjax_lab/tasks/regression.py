"""One number of each example, or several.

z         (y - m) / s, with the mean m and the standard deviation s of the training labels
loss      mean over the numbers of an example of (o - z)^2, |o - z| or Huber's function
measured  RMSE and MAE in the unit of y, and R2 = 1 - sum (o - z)^2 / sum (z - mean z)^2; of
          several numbers the mean of each measure, as in scikit-learn
"""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import OneOf, Positive, checked
from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.tasks import Labels, check_labels
from fedjax_lab.types import Array, Objective

FUNCTIONS = {"mse": jnp.square, "mae": jnp.abs, "huber": optax.losses.huber_loss}


@checked("task")
def regression(
    labels: Labels,
    *,
    loss: Annotated[str, OneOf(FUNCTIONS)] = "mse",
    delta: Positive[float] = 1.0,
    standardize: bool = True,
) -> Objective:
    """Labels y [N] or [N, T] are numbers. A prediction has the unit of y.

    loss: mse, the squared error; mae, the absolute error; or huber.
    delta: the error from which Huber's function grows linearly.
    standardize: whether the model learns z; otherwise it learns y itself.
    """
    check_labels("regression", labels.y, "iuf", (1, 2), "a number, or several, of each example")
    _check_finite(labels.every)
    m, s = _moments(labels.y)
    center, scale = (m, s) if standardize else (np.zeros_like(m), np.ones_like(s))
    of_error = partial(FUNCTIONS[loss], delta=delta) if loss == "huber" else FUNCTIONS[loss]

    def losses(o, y):
        return jnp.mean(of_error(o - (_columns(y) - center) / scale), -1)

    def errors(o, y, mask):
        z = (_columns(y) - m) / s
        error = (o * scale + center - m) / s - z
        return {"squared": error**2, "absolute": jnp.abs(error), "z": z, "zz": z**2}

    label = jax.ShapeDtypeStruct(labels.y.shape[1:], jnp.float32)
    return Objective(
        name="regression",
        outputs=m.shape,
        label=label,
        losses=losses,
        predict=lambda o: (o * scale + center).reshape(o.shape[0], *label.shape),
        metrics=(
            Summed("rmse", errors, partial(_rmse, s), lower_is_better=True),
            Summed("mae", errors, partial(_mae, s), lower_is_better=True),
            Summed("r2", errors, _r2),
        ),
    )


def _columns(y: Array) -> Array:
    """Labels [B] or [B, T] -> [B, T]."""
    return jnp.reshape(y, (y.shape[0], -1)).astype(jnp.float32)


def _moments(y):
    """The mean and the standard deviation of each column [T], which is 1 for a constant one."""
    columns = y.reshape(len(y), -1).astype(np.float64)
    m, s = columns.mean(0), columns.std(0)
    return m.astype(np.float32), np.where(s > 0, s, 1).astype(np.float32)


def _check_finite(y: np.ndarray) -> None:
    """Raises BadInput if a label is NaN or infinite."""
    if not np.isfinite(y).all():
        raise BadInput("config.task.name=regression needs finite labels, and some are not")


def _rmse(s, sums, total):
    return (s * np.sqrt(sums["squared"] / total[..., None])).mean(-1)


def _mae(s, sums, total):
    return (s * sums["absolute"] / total[..., None]).mean(-1)


def _r2(sums, total):
    """R2; NaN for a single example and for equal labels, whose sums differ only by rounding."""
    around_mean = sums["zz"] - sums["z"] ** 2 / total[..., None]
    varies = (around_mean > 1e-5 * sums["zz"]) & (total[..., None] > 1)
    return (1 - sums["squared"] / np.where(varies, around_mean, np.nan)).mean(-1)
