"""FedConcat's communication cost, and the number of rounds that it pays for (section 4.3)."""

import jax

from fedjax_lab.errors import BadInput
from fedjax_lab.models.task import split_head
from fedjax_lab.types import Task

ENCODER_SHARE = 31, 50  # the paper's encoder rounds, and its rounds of FedAvg


def split_rounds(
    task: Task,
    rounds: int,
    num_clusters: int | str,
    encoder_rounds: int,
    classifier_rounds: int,
    least: int = 1,
) -> tuple[int, int]:
    """Returns (T_1, T_2), the rounds of encoder training and of classifier training.

    Where a setting is 0, the number follows from the cost of T = `rounds` rounds of FedAvg. If the
    number of clusters is a word, the cost is that of five clusters.

    num_clusters: K, or a word such as "elbow".
    encoder_rounds: T_1, or 0.
    classifier_rounds: T_2, or 0.
    least: the smallest T_1 that is chosen for encoder_rounds=0.
    """
    T_1 = encoder_rounds or max(least, default_encoder_rounds(rounds))
    if classifier_rounds:
        return T_1, classifier_rounds
    K = num_clusters if isinstance(num_clusters, int) else 5
    T_2 = round(affordable_rounds(*sizes(task), K, T_1, rounds))
    if encoder_rounds and T_2 < 1:
        raise BadInput(
            f"config.run.rounds={rounds} rounds of FedAvg cost less than"
            f" config.method.encoder_rounds={T_1} rounds of the encoder and one round of the"
            " classifier; set config.method.classifier_rounds"
        )
    return T_1, max(1, T_2)


def default_encoder_rounds(rounds: int) -> int:
    """Returns T_1 for T = `rounds` rounds of FedAvg: 31 for 50, as in the paper."""
    part, whole = ENCODER_SHARE
    return rounds * part // whole


def sizes(task: Task) -> tuple[int, int]:
    """Returns (m, c), how many numbers a model has, with running statistics, and its last layer."""
    weights = jax.eval_shape(task.init, jax.random.key(0))
    head = split_head(task, weights)[1]
    return tuple(sum(a.size for a in jax.tree.leaves(w)) for w in (weights, head))


def cost(m: int, c: int, K: int, T_1: int, T_2: float) -> float:
    """Returns how many numbers one client sends and receives in FedConcat (section 4.3).

    T rounds of FedAvg cost 2 m T. The formula counts K biases of the classifier, which has one.
    """
    return 2 * m * T_1 + K * (m - c) + 2 * K * c * T_2


def affordable_rounds(m: int, c: int, K: int, T_1: int, T: int) -> float:
    """Returns the T_2 with which FedConcat costs as much as T rounds of FedAvg."""
    return (2 * m * T - cost(m, c, K, T_1, 0)) / (2 * K * c)
