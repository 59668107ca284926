"""FedC2I's Fig. 3: the influence vectors of a run as heat maps, one for each evaluated round.

python launch/fedc2i_figures.py WORKDIR --out=influence.png [--rounds=1,5,10,20] [--seed=0]

A row is the client that measures, a column the client whose influence on it is measured; each row
sums to 1. Rounds are those that the run evaluated: all of them with config.run.eval_every=1.
"""

import argparse
from pathlib import Path

import numpy as np

from fedjax_lab import metrics, plots, runs
from fedjax_lab.errors import BadInput

MOST = 6  # maps side by side where no rounds are named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=Path, help="folder of a run of fedc2i")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    parser.add_argument("--rounds", default="", help="rounds to show; some of all by default")
    parser.add_argument("--seed", type=int, default=None, help="the run's first by default")
    args = parser.parse_args()
    try:
        maps, names = influence(args.workdir, args.seed)
        wanted = [int(r) for r in args.rounds.split(",")] if args.rounds else spread(sorted(maps))
        missing = [r for r in wanted if r not in maps]
        if missing:
            raise BadInput(f"round {missing[0]} was not evaluated; there are {sorted(maps)}")
    except (BadInput, ValueError) as error:
        parser.error(str(error))
    figure = plots.draw_heat_maps(
        {f"round {r}": maps[r] for r in wanted},
        "weight (a row's sum is 1)",
        plots.Side("on client", names),
        plots.Side("influence of client", names),
    )
    print(plots.save(figure, args.out))


def influence(workdir: Path, seed: int | None) -> tuple[dict[int, np.ndarray], list[str]]:
    """{round: lambda [M, M]} of a seed, and the clients' names: their domains where they can be.

    BadInput if the run recorded none.
    """
    file = workdir / "metrics.jsonl"
    rows = metrics.read_metrics(file) if file.exists() else []
    seed = rows[0]["seed"] if rows and seed is None else seed
    maps = {
        row["round"]: np.array(row["recorded"]["influence"])
        for row in rows
        if row["seed"] == seed and "influence" in row.get("recorded", {})
    }
    if not maps:
        raise BadInput(f"{workdir} holds no influence of seed {seed}: is it a run of fedc2i?")
    config = runs.read(workdir).config
    names = [str(i) for i in range(len(next(iter(maps.values()))))]
    domains = list(rows[0].get("domains", {}))
    if config["partition"].get("name") == "by_domain" and len(domains) == len(names):
        names = domains
    return maps, names


def spread(rounds: list[int]) -> list[int]:
    """At most MOST of the rounds, the first and the last among them."""
    places = np.linspace(0, len(rounds) - 1, min(MOST, len(rounds))).round().astype(int)
    return [rounds[i] for i in places]


if __name__ == "__main__":
    main()
