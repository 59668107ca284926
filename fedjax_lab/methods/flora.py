"""FLoRA (Wang et al., NeurIPS 2024, arXiv:2409.05976): stacked factors of clients of any rank.

  send    A_t, Delta_t, which is what has been added to the base W
  local   (A_i, B_i) of rank r_i <- SGD on F_i with W + Delta_t, from the first r_i columns of A_t
          and B = 0
  server  A = [A_1, ..., A_M],  B = [p_1 B_1; ...; p_M B_M],  p_i = n_i/n      (L8)
          Delta_{t+1} = Delta_t + s A B;  A_{t+1} is drawn anew

The sum is exact: A B = sum_i p_i A_i B_i. In the paper all clients take part in every round and
receive the stacked factors, M times an upload. Here a client may have missed rounds, so that the
download is counted as A_t, B = 0 and Delta_t, a float32 matrix for each adapted kernel; the base
itself is not part of it. The server draws one A_{t+1} for all clients. s is the same for all ranks,
as in the authors' code, where alpha_i = 2 r_i. Other weights that are trained, such as a head, are
averaged. The base must not be quantized.
"""

from functools import partial

from fedjax_lab import losses, tree
from fedjax_lab.methods import _factors as factors
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, Task


@checked("method")
def flora(task: Task, *, ranks: tuple = ()) -> Method:
    """ranks: the ranks r_i of the clients, repeated in the order of their ids; (): all have rank r.

    r is config.adapter.rank, the largest possible rank.
    """
    s, rank = factors.adapters_of(task).scale, factors.client_ranks(task, ranks)

    def send(server, id):
        return server._replace(w=factors.truncated(server.w, rank(id)))

    def local(server, client, work):
        cut = partial(factors.truncated, rank=rank(client.id))
        risk = losses.risk(factors.on_base(task, server.delta))
        return factors.train(risk, server.w, work, cut), client.private

    def aggregate(server, uploads, cohort):
        of_clients = factors.pairs(uploads).items()
        stack = {path: factors.stacked(cohort.weight, pair) for path, pair in of_clients}  # L8
        change = {path: factors.product(pair) for path, pair in stack.items()}
        w = factors.fresh(tree.mix(cohort.weight, uploads), cohort.key[0])
        return factors.Server(w, tree.add(server.delta, change, s))

    method = factors.changing_the_base(task, Exchange(send, local, aggregate, alike=False))
    return factors.counted(method, task, ranks)
