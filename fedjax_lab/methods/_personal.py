"""FedAvg with a private state of each client, which determines the model that it predicts with."""

from collections.abc import Callable

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.types import Client, Method, PyTree, State, Task, Weights, Work

Local = Callable[[Weights, Client, Work], tuple[PyTree, PyTree]]


def with_personal_models(
    task: Task,
    local: Local,
    start: Callable[[Weights], PyTree] = lambda w: w,
    model: Callable[[Weights, PyTree], Weights] = lambda w, private: private,
    shared: Task | None = None,
) -> Method:
    """Returns FedAvg with a personal model for each client.

    A new client gets the private state `start` of the global model. When it joins, it does the
    local work of one round and keeps the resulting private state.

    Args:
      task: the model.
      local: as in `Exchange`; the upload is the client's version of the global model.
      start: weights -> the private state of a client that has not taken part yet.
      model: (global model, private state) -> the weights that the client predicts with.
      shared: the task of the global model; None: it is that of the clients' models.
    """

    def init(key, num_clients):
        w = v = task.init(key)
        if shared is not None and shared is not task:
            w = shared.init(key)
        return State(w, tree.repeat(start(v), num_clients))

    def predict(w, client, x):
        return task.apply(model(w, client.private), x).logits

    def join(w, client, work):
        return w, local(w, client._replace(private=start(w)), work)[1]

    return fedavg(task, local)._replace(
        init=init,
        predict=predict,
        newcomer=lambda state: (state.server, start(state.server)),
        join=join,
    )


def train_together(work: Work, w: Weights, v: Weights, loss: Callable) -> tuple[Weights, Weights]:
    """Trains two models on the same batches, and returns both.

    loss: (w, v, batch, key) -> (value, (`Output` of w, `Output` of v)).
    """

    def joint(both, batch, key):
        value, outs = loss(*_apart(both), batch, key)
        return value, outs[0]._replace(stats=tuple(out.stats for out in outs))

    return _apart(work.train(Weights((w.params, v.params), (w.stats, v.stats)), joint))


def _apart(both):
    (w, v), (w_stats, v_stats) = both
    return Weights(w, w_stats), Weights(v, v_stats)
