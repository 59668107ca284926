"""Counts of what a run has done: rounds, seconds, sums over clients, and bytes sent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab.engine import processes
from fedjax_lab.engine.programs import Programs
from fedjax_lab.simulation.simulate import Progress
from fedjax_lab.types import Federation, Method

Messages = tuple[Any, Any]  # (clients that took part, uploads that arrived), [seeds] each
BLOCK_SECONDS = 1.0  # duration of a block of rounds, between which interrupts are checked


class Session(NamedTuple):
    """The work of this process, for its rates."""

    played: int = 0  # rounds
    seconds: float = 0.0
    totals: np.ndarray = np.zeros(3)  # examples, steps, lane steps; summed over all seeds

    def after(self, rounds: int, seconds: float) -> "Session":
        """The session after further rounds."""
        return self._replace(played=self.played + rounds, seconds=self.seconds + seconds)


def block_length(session: Session, begun: Session, at_most: int) -> int:
    """The number of rounds of the next block, the same in all processes.

    begun: the session at the beginning of the stage.
    """
    new = session.played - begun.played
    pace = new / (session.seconds - begun.seconds) if new else 0.0
    return processes.call_in_first(lambda: int(np.clip(pace * BLOCK_SECONDS, 1, at_most)))


def seed_sums(sums: Sequence[Progress]) -> Progress:
    """The sums of all lanes as NumPy arrays, [seeds] each; without histories, which are large."""
    sums = [of_lane._replace(history=[]) for of_lane in sums]
    each = [jax.tree.map(np.atleast_1d, of_lane) for of_lane in jax.device_get(sums)]
    return jax.tree.map(lambda *a: np.concatenate(a), *each)


def work_of(sums: Sequence[Progress]) -> np.ndarray:
    """The examples, steps and lane steps of all seeds."""
    total = seed_sums(sums)
    return np.array([total.examples.sum(), total.steps.sum(), total.lane_steps.sum()])


def messages_of(sums: Sequence[Progress]) -> Messages:
    """The messages since the last evaluation.

    They are None if no place of a cohort can be empty, or no upload can be lost, respectively.
    """
    if not sums[0].counts.keys() & {"drawn", "arrived"}:
        return None, None
    counts = seed_sums(sums).counts
    return counts.get("drawn"), counts.get("arrived")


def bytes_of(
    programs: Sequence[Programs],
    rounds: int,
    before: Messages,
    after: Messages,
    absent: np.ndarray,
) -> np.ndarray:
    """Bytes up and down [seeds, 2] in these rounds of a stage.

    programs: of each lane. before, after: `messages_of` before and after the rounds. absent: see
    `absent_bytes`.
    """
    each = [(of_lane.clients, *of_lane.of_round[0].message_bytes) for of_lane in programs]
    clients, up, down = np.array(each).T  # per lane; vectorized seeds send equally many bytes
    pairs = zip(after, before, strict=True)
    drawn, arrived = (None if then is None else now - then for now, then in pairs)
    sent = rounds * clients if drawn is None else drawn
    arrived = sent if arrived is None else arrived
    up, down = up - absent[:, 0], down - absent[:, 1]
    return np.stack(np.broadcast_arrays(arrived * up, sent * down), axis=-1)


def absent_bytes(method: Method, federations: Sequence[Federation]) -> np.ndarray:
    """The mean over all clients of the bytes (up, down) that `Extra.absent` counts, [seeds, 2]."""
    absent = method.extra.absent or (lambda federation: np.zeros(1))
    each = [np.asarray(absent(federation), np.float64) for federation in federations]
    means = [np.broadcast_to(np.mean(of_clients, axis=0), 2) for of_clients in each]
    return np.stack(means)
