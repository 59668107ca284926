"""Local training: no communication at all, also called SingleSet.

  local   w_i <- SGD on F_i from w_i             the optimizer starts afresh each round

All clients train in every round, so that communication is the only difference to FedAvg with full
participation. Each client is scored with its own model.
"""

from fedjax_lab import losses, sampling, tree
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, State, Task


@checked("method")
def local(task: Task) -> Method:
    """Every client keeps its own model; all models start from the same weights."""
    risk = losses.risk(task)

    def init(key, num_clients):
        return State((), tree.repeat(task.init(key), num_clients))

    def train(nothing, client, work):
        return (), work.train(client.private, risk)

    def predict(nothing, client, x):
        return task.apply(client.private, x).logits

    exchange = Exchange(lambda server, id: (), train, lambda server, uploads, cohort: ())
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.all_clients
    )
