"""One class of each example: the cross-entropy, and the accuracy in percent."""

from fedjax_lab import losses
from fedjax_lab.data.dataset import IGNORED
from fedjax_lab.errors import BadInput
from fedjax_lab.tasks import REGRESSION, Labels, check_labels
from fedjax_lab.types import Objective


def classification(labels: Labels) -> Objective:
    """Labels y [N] are numbers of classes, 0 .. K - 1."""
    check_labels("classification", labels.y, "iu", (1,), "the number of one class of each example")
    if not labels.classes:
        low, high = labels.every.min(), labels.every.max()
        raise BadInput(
            f"config.task.name=classification needs labels 0 .. K - 1, not {low} .. {high}: leave"
            f" out examples without a label, such as {IGNORED}, and number the classes from 0, as"
            f" numpy.unique(y, return_inverse=True)[1] does; for amounts set {REGRESSION}"
        )
    return losses.classification(len(labels.classes))
