"""FedAvg beside which every client keeps something of its own and predicts with a model of it."""

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
) -> Method:
    """FedAvg's global model, and for each client what `local` makes of its private state.

    A new client has the private state that starts from the global model; when it joins it does a
    round's local work and keeps what is private of that.

    Args:
      task: the model.
      local: as in `Exchange`; the upload is the client's version of the global model.
      start: weights -> the private state of a client that has not taken part yet.
      model: (global model, private state) -> the weights that the client predicts with.
    """

    def init(key, num_clients):
        w = task.init(key)
        return State(w, tree.repeat(start(w), num_clients))

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
    """Two models after one training, in which both see the same batches.

    loss: (w, v, batch, key) -> (value, (`Output` of w, that of v)).
    """

    def joint(both, batch, key):
        value, outs = loss(*_apart(both), batch, key)
        return value, outs[0]._replace(stats=tuple(out.stats for out in outs))

    return _apart(work.train(Weights((w.params, v.params), (w.stats, v.stats)), joint))


def _apart(both):
    (w, v), (w_stats, v_stats) = both
    return Weights(w, w_stats), Weights(v, v_stats)
