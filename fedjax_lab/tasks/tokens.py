"""The class of each token of a sequence, such as the next token of a language model.

loss      sum of the cross-entropies of the tokens that count / their number
measured  accuracy of the tokens in percent, perplexity exp(loss)
"""

from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.simulation.metrics import perplexity as exp_mean
from fedjax_lab.tasks import Labels, _positions, check_labels
from fedjax_lab.types import Objective


def tokens(labels: Labels) -> Objective:
    """Labels y [N, T] are classes, or -1 for tokens that do not count, such as padding."""
    check_labels("tokens", labels.y, "iu", (2,), "a sequence of whole numbers for each example")
    made = _positions.objective("tokens", labels)

    def losses(logits, y, mask):
        return made.losses(logits, y)

    perplexity = Summed("perplexity", losses, exp_mean, lower_is_better=True)
    return made._replace(metrics=(perplexity,))
