"""Whether an example is positive.

loss      log(1 + exp(-o)) if y = 1, log(1 + exp(o)) if y = 0, for the only output o
measured  accuracy, and F1 score of the positive examples, in percent; auroc and map if named
"""

import jax
import jax.numpy as jnp

from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.tasks import Labels, _indicators, check_indicators, check_labels
from fedjax_lab.types import Objective


def binary(labels: Labels) -> Objective:
    """Labels y [N] are 0 or 1. A prediction is the probability of 1."""
    check_labels("binary", labels.y, "iubf", (1,), "a label of 0 or 1 for each example")
    check_indicators("binary", labels.every)
    return Objective(
        name="binary",
        outputs=(1,),
        label=jax.ShapeDtypeStruct((), jnp.int32),
        losses=lambda logits, y: _indicators.losses(logits, y[:, None]),
        correct=lambda logits, y: _indicators.correct(logits, y[:, None]),
        predict=lambda logits: _indicators.probabilities(logits[:, 0]),
        metrics=(Summed("f1", _outcomes, _indicators.macro_f1),),
        optional=("auroc", "map"),
    )


def _outcomes(logits, y, mask):
    return _indicators.outcomes(logits, y[:, None], mask)
