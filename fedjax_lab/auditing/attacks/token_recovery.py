"""The tokens of clients' texts from what they send of the table of embeddings.

A step changes only the rows of tokens that occur in its examples, unless the table is also that of
the outputs. A row whose change is not small beside the largest one is taken for a token that
occurred. The order of the tokens and their counts are not looked for.
"""

import jax.numpy as jnp
import numpy as np

from fedjax_lab.auditing import uploads
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.target import Target
from fedjax_lab.data import lazy
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, Positive, Share, checked


@checked("attack")
def token_recovery(
    target: Target,
    *,
    examples: NotNegative[int] = 4,
    clients: Positive[int] = 4,
    threshold: Share = 1e-3,
) -> Findings:
    """Measures which tokens the server can tell from the next round.

    examples: each client trains with so many of its examples, the first ones, or with as many as
        the client with the fewest has; 0: with those.
    clients: how many clients of the cohort are attacked.
    threshold: the smallest norm of a row of an occurring token, relative to the largest one.
    """
    if not uploads.is_text(target):
        raise BadInput("the examples are no tokens; use --attack=inversion")
    highest = int(lazy.limits(target.run.experiment.dataset.x)[1])
    with uploads.naming(target):
        observed = uploads.observe(target, examples, ())
        table = _table(observed, max(highest + 1, target.run.config.model.vocabulary))
    whole, number = observed.is_sum, len(observed.x)
    groups = [range(number)] if whole else [[i] for i in range(min(clients, number))]
    rows = [
        {"clients": [int(observed.clients.id[i]) for i in group], "examples": observed.x.shape[1]}
        | shares(np.asarray(observed.x[jnp.asarray(group)]), np.asarray(table[k]), threshold)
        for k, group in enumerate(groups)
    ]
    return Findings(rows, remarks=list(uploads.remarks(target, observed, examples, ())))


def shares(x: np.ndarray, table: np.ndarray, threshold: float) -> dict[str, float]:
    """How well tokens are told: their number, and precision and recall in percent.

    x: [..., T] the true tokens; those below 0 do not count. table: [V, D] what was sent.
    """
    true = np.unique(x[x >= 0]).astype(int)
    norms = np.linalg.norm(table, axis=1)
    claimed = np.flatnonzero(norms > threshold * norms.max())
    right = len(np.intersect1d(true, claimed))
    return {
        "tokens": len(true),
        "precision": 100 * right / max(len(claimed), 1),
        "recall": 100 * right / max(len(true), 1),
    }


def _table(observed, vocabulary):
    """What was sent of the table of embeddings, [M, V, D]: the smallest with a row per token."""
    named = zip(observed.names, observed.sent, strict=True)
    tables = [a for name, a in named if name.endswith("embedding") and a.ndim == 3]
    tables = [a for a in tables if a.shape[1] >= vocabulary]
    if not tables:
        raise BadInput("its clients do not send a table of embeddings of tokens")
    return min(tables, key=lambda a: a.shape[1])
