"""Membership inference by likelihood ratios with reference federations (LiRA).

Carlini et al., S&P 2022, arXiv:2112.03570: see `auditing.likelihood` for the formulas. Reference
federations are trained like the run, on random choices of its members and nonmembers, by one
program for many of them: see `auditing.membership`. The attacker knows the method, the settings,
and who is a candidate, but neither the run's seed nor its first weights.
"""

from typing import Annotated, Literal

import numpy as np

from fedjax_lab.auditing import likelihood, membership, rates
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.target import Target
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import Positive, Within, checked
from fedjax_lab.running import loading


@checked("attack")
def lira(
    target: Target,
    *,
    view: Literal["global", "client"] = "global",
    client: Annotated[int, Within(-1)] = -1,
    mode: Literal["online", "offline"] = "online",
    references: Annotated[int, Within(4)] = 16,
    chunk: Positive[int] = 16,
) -> Findings:
    """Tells members from nonmembers by the models of reference federations.

    view: whose model is attacked: global, the one that every client and the server see; or client,
        the one with which an example's client is scored.
    client: the number of the client whose examples are attacked; -1: of all.
    mode: online, with references that were trained with an example and without it; offline, only
        with those without it.
    references: the number of reference federations; the paper has 256.
    chunk: how many of them are trained at once, which needs that many times the memory of a run.
    """
    if target.round == 0:
        raise BadInput("before its first round a run has no members; use a later checkpoint")
    loading.check_first_state(target.run.config)
    of = membership.candidates(target.federation)
    chosen, seed = membership.comparable(of, client), target.seed + 1
    _check_number(membership.draw(of, references, seed)[:, chosen], mode)
    sim = membership.make_simulator(target, of, view)
    trained = membership.references(
        sim, of, [target.round], references, min(chunk, references), seed
    )
    function = likelihood.online if mode == "online" else likelihood.offline
    phi = membership.seen(sim, target, of)
    scores = np.full(len(chosen), np.nan)
    scores[chosen] = function(phi[chosen], trained.phi[:, 0, chosen], trained.included[:, chosen])
    common = "a common variance" if references < likelihood.ENOUGH else "a variance of its own"
    remark = f"Each example has {common} ({references} references; see auditing.likelihood)."
    findings = membership.findings(scores, of, chosen)
    return findings._replace(remarks=[remark, *findings.remarks])


def _check_number(included, mode):
    """Raises BadInput if there are too few references, before they are trained."""
    likelihood.check_number(~included)
    if mode == "online":
        likelihood.check_number(included)


pictures = rates.pictures
