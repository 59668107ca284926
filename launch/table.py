"""One config with many methods: a Markdown table of accuracy in percent by domain.

    python launch/table.py --config=configs/fedpick_digits.py --out=DIR [--methods=fedavg,fedbn]
                           [--seeds=0,1,2] [--way=last] [--config.run.rounds=100 ...]

Each method is one run of fedjax_lab.main in DIR/METHOD. What is finished there is not run again,
what was interrupted goes on; a run with another config or other seeds is refused. Ways to choose
the round: last, best_by_validation, max_over_rounds, max_per_domain.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from fedjax_lab import report
from fedjax_lab.registry import METHODS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--way", default="last", choices=report.LABELS)
    args, overrides = parser.parse_known_args()
    rows = {}
    for method in args.methods.split(","):
        folder = args.out / method
        if run(args, method, folder, overrides):
            summary = json.loads((folder / "summary.json").read_text())
            rows[method] = cells(summary[args.way]["per_seed"])
    print(f"\n{report.LABELS[args.way]}; mean (population std) over seeds {args.seeds}")
    print(" ".join([args.config, *overrides]) + "\n")
    print("\n".join(markdown(rows)))


def run(args, method, folder, overrides) -> bool:
    """Plays one run of fedjax_lab.main in the folder, or what is left of it.

    Whether it came to its end; a failure is told and left out of the table.
    """
    command = [sys.executable, "-m", "fedjax_lab.main", f"--config={args.config}:{method}"]
    command += [f"--workdir={folder}", f"--seeds={args.seeds}", *overrides]
    if (folder / "config.json").exists():
        command.append("--resume")
    print(" ".join(command[1:]), flush=True)
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code:
        print(f"{folder}: exit code {code}", flush=True)
    return code == 0


def cells(per_seed) -> dict[str, np.ndarray]:
    """{column: value of each seed}: the domains, if there are several, and their mean."""
    seeds = [s.get("domains") or {"global": s["global"]} for s in per_seed.values()]
    columns = {name: [s[name] for s in seeds] for name in seeds[0]}
    columns["mean"] = [np.mean(list(s.values())) for s in seeds]
    return {name: np.array(values) for name, values in columns.items()}


def markdown(rows) -> list[str]:
    """The table's lines, the best mean of each column in bold."""
    if not rows:
        return ["no run came to its end"]
    columns = list(next(iter(rows.values())))
    best = {c: max(row[c].mean() for row in rows.values()) for c in columns}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method, row in rows.items():
        shown = [f"{row[c].mean():.1f} ({row[c].std():.1f})" for c in columns]
        bold = [row[c].mean() == best[c] for c in columns]
        shown = [f"**{s}**" if b else s for s, b in zip(shown, bold, strict=True)]
        lines.append(f"| `{method}` | " + " | ".join(shown) + " |")
    return lines


if __name__ == "__main__":
    main()
