"""FedC2I's Fig. 3: the influence vectors of a run as heat maps, one for each evaluated round.

python -m fedjax_lab.figures fedc2i FOLDER [--rounds=1,5,10,20] [--seed=0]

--rounds  the rounds to show; default: up to six of the evaluated rounds
--seed    the seed; default: the run's first seed

influence.png has a heat map for each round. A row has the influence of all clients on one client
and sums to 1; a column has the influence of one client. Only rounds that the run evaluated can be
shown; with config.run.eval_every=1 these are all rounds.
"""

from pathlib import Path

import numpy as np

from fedjax_lab.analysis import runs
from fedjax_lab.analysis.figures.drawn import Drawn, recorded, rows_of
from fedjax_lab.errors import BadInput
from fedjax_lab.running import plots

MOST = 6  # the most maps if no rounds are named


def draw(workdir: Path, *, rounds: str = "", seed: int | None = None) -> Drawn:
    """Heat maps of the influence of a run's clients on one another."""
    maps, names = influence(workdir, seed)
    figure = plots.draw_heat_maps(
        {f"round {r}": maps[r] for r in choose(sorted(maps), rounds)},
        "weight (a row's sum is 1)",
        plots.Side("on client", names),
        plots.Side("influence of client", names),
    )
    return Drawn({"influence": figure})


def influence(workdir: Path, seed: int | None) -> tuple[dict[int, np.ndarray], list[str]]:
    """The influence {round: lambda [M, M]} of one seed, and the names of the clients.

    Clients are named by their domains if each client holds one. Raises BadInput if the run recorded
    no influence.
    """
    rows = rows_of(workdir, seed)
    seed = rows[0]["seed"] if rows else seed
    maps = {r: np.array(entry["influence"]) for r, entry in recorded(rows, "influence").items()}
    if not maps:
        raise BadInput(f"{workdir} holds no influence of seed {seed}: is it a run of fedc2i?")
    config = runs.read(workdir).config
    names = [str(i) for i in range(len(next(iter(maps.values()))))]
    domains = list(rows[0].get("domains", {}))
    if config["partition"].get("name") == "by_domain" and len(domains) == len(names):
        names = domains
    return maps, names


def choose(evaluated: list[int], wanted: str) -> list[int]:
    """Parses rounds such as 1,5,10; without a text, a selection of all evaluated rounds."""
    if not wanted:
        return spread(evaluated)
    parts = wanted.split(",")
    if not all(part.isdecimal() for part in parts):
        raise BadInput(f"--rounds={wanted} is not a list of rounds such as --rounds=1,5,10")
    missing = [part for part in parts if int(part) not in evaluated]
    if missing:
        raise BadInput(f"round {missing[0]} was not evaluated; valid rounds: {evaluated}")
    return [int(part) for part in parts]


def spread(rounds: list[int]) -> list[int]:
    """At most MOST of the rounds, evenly spaced, including the first and the last."""
    places = np.linspace(0, len(rounds) - 1, min(MOST, len(rounds))).round().astype(int)
    return [rounds[i] for i in places]
