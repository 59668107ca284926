"""When clients are available: the functions that config.clock.availability names.

They take the number of clients and a generator, and return an `Availability` [C], or None: always.
"""

import json

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.speeds import check_clients, to_read
from fedjax_lab.ranges import Positive, checked
from fedjax_lab.simulation.clock import Availability

INVALID = (  # what a file raises that is not of the form of `trace`
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
CYCLES = 32  # times that `on_off` draws before they repeat


def always(num_clients: int, rng: np.random.Generator) -> None:
    """Every client is always available."""


@checked("clock")
def on_off(
    num_clients: int,
    rng: np.random.Generator,
    *,
    on: Positive[float] = 600.0,
    off: Positive[float] = 600.0,
) -> Availability:
    """Clients become available and unavailable after exponential times, independently.

    on, off: the mean seconds for which a client is available, and unavailable.
    """
    lengths = rng.standard_exponential((num_clients, CYCLES, 2)) * (off, on)
    ends = np.cumsum(lengths.reshape(num_clients, -1), axis=1)
    period = ends[:, -1] + rng.standard_exponential(num_clients) * off
    return Availability(ends, period, rng.random(num_clients) * period)


def trace(num_clients: int, rng: np.random.Generator, *, sessions: str = "") -> Availability:
    """The availability in a JSON file, with the names of FedScale's trace.

    sessions: the file: for the number of each client an object with the lists `active` and
    `inactive` of the seconds at which it becomes available and unavailable, in turn, and
    `finish_time`, after which they repeat.
    """
    key, text = "config.clock.sessions", to_read("clock.sessions", sessions)
    try:
        content = json.loads(text, object_pairs_hook=list)  # a client may be repeated
        of_clients = [(int(client), _changes(dict(each))) for client, each in content]
    except INVALID as error:
        raise BadInput(
            f"{key}: {sessions} must be a JSON object that has for each client the ascending lists"
            " active and inactive, in turn, and their finish_time, all of at least 0"
        ) from error
    check_clients("clock.sessions", sessions, [i for i, _ in of_clients], num_clients)
    of_clients.sort(key=lambda of_client: of_client[0])
    changes, period = zip(*(of_client for _, of_client in of_clients), strict=True)
    longest = max(map(len, changes))
    safe.check_fits(8 * num_clients * longest, f"the sessions in {sessions}", "shorten them")
    padded = [
        np.pad(a, (0, longest - len(a)), constant_values=a[0] + end)
        for a, end in zip(changes, period, strict=True)
    ]
    return Availability(np.stack(padded), np.array(period), np.zeros(num_clients))


def _changes(session):
    """The changes of a client, in turn, and the period. Raises ValueError unless they ascend."""
    active, inactive = session["active"], session["inactive"]
    changes = np.array(list(zip(active, inactive, strict=True)), float).ravel()
    end = float(session["finish_time"])
    ascend = (np.diff([-1e-9, *changes, end + 1e-9]) > 0).all()
    if not (len(changes) and ascend and np.isfinite(end)):
        raise ValueError
    return changes, end
