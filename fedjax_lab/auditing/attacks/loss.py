"""Membership inference by the loss: examples with a low loss are guessed to be members.

Yeom et al., CSF 2018, arXiv:1709.01604. The score is the log odds of an example's label, which
orders examples as the loss does. Members are the training examples of the clients, nonmembers their
test examples.
"""

from typing import Annotated, Literal

from fedjax_lab.auditing import membership, rates
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.target import Target
from fedjax_lab.ranges import Within, checked


@checked("attack")
def loss(
    target: Target,
    *,
    view: Literal["global", "client"] = "global",
    client: Annotated[int, Within(-1)] = -1,
) -> Findings:
    """Tells members from nonmembers by their loss.

    view: whose model is attacked: global, the one that every client and the server see; or client,
        the one with which an example's client is scored.
    client: the number of the client whose examples are attacked; -1: of all.
    """
    of = membership.candidates(target.federation)
    chosen = membership.comparable(of, client)
    sim = membership.make_simulator(target, of, view)
    scores = membership.seen(sim, target, of)
    return membership.findings(scores, of, chosen)


pictures = rates.pictures
