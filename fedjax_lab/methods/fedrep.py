"""FedRep (Collins et al., ICML 2021, arXiv:2102.07078).

  send    phi_t, the body
  local   h_i <- SGD on F_i(phi_t, h), head_epochs;  phi_i <- SGD on F_i(phi, h_i), body_epochs
  server  phi_{t+1} = sum_i n_i/n phi_i

The head h_i stays on the client. Each phase trains only one part, also with respect to momentum and
weight decay; running statistics change in both phases, as in the authors' code. Unlike here, that
code takes uniform means and ends with ten epochs of training of every head. A new client trains a
new head on the body that it receives.
"""

import jax

from fedjax_lab import losses, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedper import head, partly_private
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task


@checked("method")
def fedrep(
    task: Task,
    *,
    head_layers: int = 1,
    head_epochs: int = 1,
    body_epochs: int = 1,
    head_in_eval_mode: bool = False,
) -> Method:
    """head_layers: the head is this number of last dense layers, with all layers after them.

    head_epochs: passes of a round that train the head. body_epochs: passes of a round that then
    train the body; both replace config.local.epochs.

    head_in_eval_mode: whether the head is trained with the model in evaluation mode, without batch
    statistics and dropout.
    """
    if head_epochs == body_epochs == 0:
        raise BadInput("config.method: head_epochs and body_epochs cannot both be 0")
    risk = losses.risk(task)
    in_head = tree.within(head(task, head_layers))

    def head_risk(w, batch, key):
        return risk(w, batch, None if head_in_eval_mode else key)

    def train(w, work):
        w = work.train(w, head_risk, only=in_head, epochs=head_epochs)
        return work.train(w, risk, only=lambda name: not in_head(name), epochs=body_epochs)

    def join(body, client, work):
        fresh, _ = tree.split(in_head, task.init(jax.random.key(0)))
        w = work.train(tree.join(body, fresh), head_risk, only=in_head, epochs=max(1, head_epochs))
        return body, tree.split(in_head, w)[0]

    return partly_private(task, in_head, train)._replace(join=join)
