"""FedAvg (McMahan et al., AISTATS 2017, arXiv:1602.05629).

send    w_t
local   w_i <- SGD on F_i from w_t            (ClientUpdate, Alg. 1)
server  w_{t+1} = sum_i n_i/n w_i             (Alg. 1), over the sampled clients
"""

from fedjax_lab import losses, sampling, tree
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, State, Task


def send(w_t, id):
    """Sends the whole state of the server."""
    return w_t


def aggregate(w_t, w, cohort):
    """Returns the mean by share. Running statistics are averaged like parameters."""
    return tree.mix(cohort.weight, w)  # Alg. 1


@checked("method")
def fedavg(task: Task, local=None) -> Method:
    """FedAvg. A variant of FedAvg passes its own `local`, as in `Exchange`."""
    risk = losses.risk(task)

    def init(key, num_clients):
        return State(task.init(key), ())

    def sgd(w_t, client, work):
        return work.train(w_t, risk), client.private

    def predict(w, client, x):
        return task.apply(w, x).logits

    def newcomer(state):
        return state.server, ()

    exchange = Exchange(send, local or sgd, aggregate)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=newcomer, sample=sampling.by_size
    )
