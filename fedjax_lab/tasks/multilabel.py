"""Several labels of each example, each of which is 0 or 1.

loss      1/K sum_k (log(1 + exp(o_k)) - y_k o_k), for K labels
measured  accuracy (the share of labels that are predicted), F1 score of all labels together and
          mean F1 score of the labels, in percent; auroc and map if they are named
"""

import jax
import jax.numpy as jnp

from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.tasks import Labels, _indicators, check_indicators, check_labels
from fedjax_lab.types import Objective


def multilabel(labels: Labels) -> Objective:
    """Labels y [N, K] are 0 or 1. Predictions are the probabilities of 1."""
    check_labels("multilabel", labels.y, "iubf", (2,), "K labels of 0 or 1 for each example")
    check_indicators("multilabel", labels.every)
    K = labels.y.shape[1]
    return Objective(
        name="multilabel",
        outputs=(K,),
        label=jax.ShapeDtypeStruct((K,), jnp.int32),
        losses=_indicators.losses,
        correct=_indicators.correct,
        num_labels=lambda y: jnp.full(len(y), K, jnp.float32),
        predict=_indicators.probabilities,
        metrics=(
            Summed("micro_f1", _indicators.outcomes, _indicators.micro_f1),
            Summed("macro_f1", _indicators.outcomes, _indicators.macro_f1),
        ),
        optional=("auroc", "map"),
    )
