"""The class of each pixel of an image.

loss      sum of the cross-entropies of the pixels that count / their number
measured  accuracy of the pixels; mIoU, the mean over classes of |P and Y| / |P or Y|, and Dice,
          the mean of 2 |P and Y| / (|P| + |Y|), for the pixels P that are predicted to be of a
          class and the pixels Y of it; classes without any of both do not count; in percent
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.data.dataset import IGNORED, are_numerals
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.tasks import Labels, _positions, check_labels
from fedjax_lab.types import Objective

EDGE = 255  # the label of the edges of objects in PASCAL VOC and many other sets


def segmentation(labels: Labels) -> Objective:
    """Labels y [N, H, W] are classes, or -1 for pixels that do not count."""
    check_labels("segmentation", labels.y, "iu", (3,), "the class of each pixel")
    _check_edges(labels)
    metrics = Summed("miou", _areas, _miou), Summed("dice", _areas, _dice)
    return _positions.objective("segmentation", labels, metrics=metrics)


def _check_edges(labels):
    """Raises BadInput if 255 is the highest class, but 254 is none, and classes have no names."""
    y = labels.every
    if len(labels.classes) != EDGE + 1 or not are_numerals(labels.classes) or (y == EDGE - 1).any():
        return
    raise BadInput(
        f"config.task.name=segmentation: masks have the label {EDGE}, which usually marks pixels"
        f" that do not count: set --config.data.no_label={EDGE}; if {EDGE} is a class, number the"
        " classes from 0 without gaps, as masks // 255 does for masks of 0 and 255"
    )


def _areas(logits, y, mask):
    """The pixels of each class that are predicted, actual, and both, of each example [B, K]."""
    K = logits.shape[-1]
    predicted = jnp.where(y == IGNORED, K, jnp.argmax(logits, -1))
    areas = {"predicted": predicted, "actual": y, "both": jnp.where(predicted == y, y, K)}
    return {name: jnp.sum(jax.nn.one_hot(a, K), (1, 2)) for name, a in areas.items()}


def _miou(sums, total):
    return _mean_of_classes(sums["both"], sums["predicted"] + sums["actual"] - sums["both"])


def _dice(sums, total):
    return _mean_of_classes(2 * sums["both"], sums["predicted"] + sums["actual"])


def _mean_of_classes(part, whole):
    exists = whole > 0
    return 100 * (part / np.maximum(whole, 1)).sum(-1) / exists.sum(-1)
