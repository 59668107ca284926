"""What FedConcat costs in communication, and how many rounds that pays for (section 4.3)."""

import jax

from fedjax_lab.errors import BadInput, check_positive
from fedjax_lab.models.task import split_head
from fedjax_lab.types import Task

ENCODER_SHARE = 31, 50  # the paper's encoder rounds to FedAvg's


def split_rounds(
    task: Task,
    rounds: int,
    num_clusters: int | str,
    encoder_rounds: int,
    classifier_rounds: int,
    least: int = 1,
) -> tuple[int, int]:
    """(T_1, T_2); a number that is 0 follows from T = `rounds` of FedAvg.

    The cost is reckoned for five clusters where their number is a word.
    """
    check_positive("method.num_clusters", num_clusters)
    T_1 = encoder_rounds or max(least, default_encoder_rounds(rounds))
    if classifier_rounds:
        return T_1, classifier_rounds
    K = num_clusters if isinstance(num_clusters, int) else 5
    T_2 = round(affordable_rounds(*sizes(task), K, T_1, rounds))
    if encoder_rounds and T_2 < 1:
        raise BadInput(
            f"config.run.rounds={rounds} of FedAvg cost less than config.method.encoder_rounds="
            f"{T_1} and one of the classifier; set config.method.classifier_rounds"
        )
    return T_1, max(1, T_2)


def default_encoder_rounds(rounds: int) -> int:
    """T_1 for T = `rounds` of FedAvg: 31 for 50, as in the paper."""
    part, whole = ENCODER_SHARE
    return rounds * part // whole


def sizes(task: Task) -> tuple[int, int]:
    """(m, c): how many numbers a model has, running statistics included, and its last layer."""
    weights = jax.eval_shape(task.init, jax.random.key(0))
    head = split_head(task, weights)[1]
    return tuple(sum(a.size for a in jax.tree.leaves(w)) for w in (weights, head))


def cost(m: int, c: int, K: int, T_1: int, T_2: float) -> float:
    """Numbers sent from and to one client (section 4.3). FedAvg's T rounds: 2 m T.

    Counts K biases of the classifier, which has one.
    """
    return 2 * m * T_1 + K * (m - c) + 2 * K * c * T_2


def affordable_rounds(m: int, c: int, K: int, T_1: int, T: int) -> float:
    """T_2 with which FedConcat costs what T rounds of FedAvg do."""
    return (2 * m * T - cost(m, c, K, T_1, 0)) / (2 * K * c)
