"""hFedF's tables: every domain left out in turn; Markdown, accuracy in percent.

    python launch/domain_generalisation.py --config=configs/hfedf_pacs.py --out=DIR
        --methods=fedavg,fedprox [--targets=photo,sketch] [--domains=1,2,3] [--seeds=0,1,2]
        [--config.run.rounds=100 ...]

Each target (config.data.unseen), number of domains per client (config.partition.domains) and method
is one run of fedjax_lab.main in DIR/METHOD/dN/TARGET. What is finished there is not run again, what
was interrupted goes on; a run with another config or other seeds is refused. Without --targets all
domains are left out in turn.

id is each client's accuracy on its own validation rows, ood on all of the target; a cell is their
mean (population standard deviation) over clients and seeds after the last round, and the mean over
targets is that of the cells. The paper scores `central` on the union of the validation rows, here
it is scored like all others.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import table

from fedjax_lab import experiment, metrics
from fedjax_lab.config import load_config, resolve
from fedjax_lab.errors import BadInput

MEASURES = ("id", "ood")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--methods", required=True)
    parser.add_argument("--targets", default="")
    parser.add_argument("--domains", default="1,2,3")
    parser.add_argument("--seeds", default="0,1,2")
    args, overrides = parser.parse_known_args()
    try:
        config = f"{args.config}:{args.methods.split(',')[0]}"
        targets = args.targets.split(",") if args.targets else all_domains(config, overrides)
    except BadInput as error:
        sys.exit(f"error: {error}")
    found = {}
    for d in args.domains.split(","):
        for method in args.methods.split(","):
            for target in targets:
                folder = args.out / method / f"d{d}" / target
                own = [f"--config.data.unseen={target}", f"--config.partition.domains={d}"]
                if table.run(args, method, folder, [*overrides, *own]):
                    rows = metrics.read_metrics(folder / "metrics.jsonl")
                    found[d, method, target] = last_round(rows)
    print(f"\nlast round; mean (population std) over clients and seeds {args.seeds}")
    print(" ".join([args.config, *overrides]))
    for d in args.domains.split(","):
        cells = {
            method: {target: found.get((d, method, target), {}) for target in targets}
            for method in args.methods.split(",")
        }
        print(f"\n{d} of the other domains per client\n\n" + "\n".join(markdown(cells)))


def all_domains(config: str, overrides: list[str]) -> tuple[str, ...]:
    """The domains of the config's data, with overrides --config.KEY=VALUE."""
    pairs = [text.removeprefix("--config.").partition("=")[::2] for text in overrides]
    return experiment.load_data(resolve(load_config(config), pairs).data).domains


def last_round(rows: list[dict]) -> dict[str, list[float]]:
    """{id, ood: percent of every client and seed after the last round}, of rows of metrics."""
    last = [row for row in rows if row["round"] == rows[-1]["round"]]
    measured = [m for m in MEASURES if f"{m}_per_client" in last[0]]
    return {
        m: [value for row in last for value in row[f"{m}_per_client"] if value is not None]
        for m in measured
    }


def markdown(cells: dict[str, dict[str, dict[str, list[float]]]]) -> list[str]:
    """The lines of a table of {method: {target: {id, ood: percents}}}; gaps stay empty."""
    targets = list(next(iter(cells.values())))
    heads = [f"{m} {column}" for m in MEASURES for column in (*targets, "mean")]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for method, by_target in cells.items():
        shown = []
        for m in MEASURES:
            values = [by_target[target].get(m) for target in targets]
            shown += [cell(v) if v else "" for v in values]
            shown.append(f"{np.mean([np.mean(v) for v in values]):.2f}" if all(values) else "")
        lines.append(f"| `{method}` | " + " | ".join(shown) + " |")
    return lines


def cell(values: Iterable[float]) -> str:
    """Mean (population standard deviation)."""
    return f"{np.mean(values):.2f} ({np.std(values):.2f})"


if __name__ == "__main__":
    main()
