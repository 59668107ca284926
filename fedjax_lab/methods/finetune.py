"""FedAvg with fine-tuning (Cheng et al., 2021, arXiv:2108.07313).

  send    w_t
  local   as FedAvg
  server  as FedAvg

Before a client is scored, it trains the model that it received on its own data. The result is not
kept. The global test set is scored with the model before fine-tuning.
"""

from fedjax_lab import losses
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked, choice
from fedjax_lab.types import Method, Task

RANGES = {"epochs": choice(1, 2, 5)}


@checked("method")
def finetune(task: Task, *, epochs: int = 1) -> Method:
    """epochs: passes over the client's data before it is scored; 0 is FedAvg."""
    risk = losses.risk(task)

    def tune(w_t, client, work):
        return work.train(w_t, risk, epochs=epochs), client.private

    return fedavg(task)._replace(tune=tune)
