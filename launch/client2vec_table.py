"""Client2Vec's Table 1: base methods as they are, +i, +i+ii and +i+ii+iii, by both kinds of index.

    python launch/client2vec_table.py --config=configs/client2vec_digits.py --out=DIR
        [--bases=fedavg,fedavgm,feddyn,moon,fedlc,fediir] [--indices=federated,global]
        [--epochs=500] [--seeds=0] [--way=max_over_rounds] [--config.run.rounds=30 ...]

Each cell is one run of fedjax_lab.main in DIR; the first runs find the indices, which all others
take. What is finished is not run again, what was interrupted goes on. i: sampling; ii: aggregation;
iii: local training. Accuracy in percent: mean over clients, then over seeds (population standard
deviation).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import table

from fedjax_lab import report

STEPS = {
    "+i": ("aggregation", "local_training"),
    "+i+ii": ("local_training",),
    "+i+ii+iii": (),
}  # what each column leaves out
SETTINGS = {"moon": {"projection": "mlp256"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--bases", default="fedavg,fedavgm,feddyn,moon,fedlc,fediir")
    parser.add_argument("--indices", default="federated,global")
    parser.add_argument("--epochs", type=int, default=500, help="of the index network")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--way", default="max_over_rounds", choices=report.LABELS)
    args, overrides = parser.parse_known_args()
    bases, indices = args.bases.split(","), args.indices.split(",")
    for index in indices:
        found = {"index": index, "index_epochs": args.epochs}
        short = [*overrides, "--config.run.rounds=1", "--config.run.eval_every=1"]
        run(args, f"index-{index}", "client2vec", found, short)
    rows = {}
    for base in bases:
        own = SETTINGS.get(base, {})
        row = [run(args, f"{base}", base, own, overrides)]
        for index in indices:
            known = {"index": index, "index_of": args.out / f"index-{index}", "base": base, **own}
            for step, without in STEPS.items():
                method = known | dict.fromkeys(without, False)
                row.append(run(args, f"{base}-{index}-{step}", "client2vec", method, overrides))
        rows[base] = row
    print(f"\n{report.LABELS[args.way]}, seeds {args.seeds}: {args.config} {' '.join(overrides)}\n")
    print("\n".join(markdown(rows, indices)))


def run(args, name, method, settings, overrides) -> np.ndarray | None:
    """The accuracies of the seeds of one cell; None where the run failed, which is told."""
    folder = args.out / name
    own = [f"--config.method.{key}={value}" for key, value in settings.items()]
    if not table.run(args, method, folder, [*overrides, *own]):
        return None
    seeds = json.loads((folder / "summary.json").read_text())[args.way]["per_seed"].values()
    return np.array([s["accuracy"]["mean"] for s in seeds])


def markdown(rows: dict[str, list], indices: list[str]) -> list[str]:
    """The table's lines; the best mean of each row in bold."""
    columns = ["as it is", *(f"{index} {step}" for index in indices for step in STEPS)]
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for base, cells in rows.items():
        best = max((cell.mean() for cell in cells if cell is not None), default=None)
        shown = [_cell(cell, best) for cell in cells]
        lines.append(f"| `{base}` | " + " | ".join(shown) + " |")
    return lines


def _cell(values, best) -> str:
    if values is None:
        return ""
    text = f"{values.mean():.1f}" + (f" ({values.std():.1f})" if len(values) > 1 else "")
    return f"**{text}**" if values.mean() == best else text


if __name__ == "__main__":
    main()
