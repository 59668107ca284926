"""Times this package, a plain PyTorch loop and FedJAX on the same workloads, one after another.

    python launch/speed/compare.py --torch=PYTHON --fedjax=PYTHON [--repeats=5]
    python launch/speed/compare.py --print
    python launch/speed/compare.py --write

PYTHON is the Python of an environment with the packages that peer_torch.py or peer_fedjax.py needs.
Every repeat starts each program once for each workload, so that a slow moment of the machine
affects all of them. The times are written to docs/results/speed_peers.json. --print prints their
table without running anything, and --write writes it to docs/speed.md. Nothing else may run on the
machine during the measurement.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import measure
import numpy as np
import records

from fedjax_lab.analysis import formats

NAME = "speed_peers"
TIMES = records.RESULTS / f"{NAME}.json"
PAGE = records.ROOT / "docs" / "speed.md"
WORKLOADS = "W1", "W2", "W3", "W4"
OURS = "fedjax_lab"
ROUNDS = {"W1": ["--rounds=3"], "W4": ["--rounds=3"]}  # of the others, whose rounds take seconds
PROGRAMS = {  # {column of the table: the arguments of its command for a workload; None: not run}
    OURS: lambda work: ["benchmark.py", f"--workload={work}", "--strategy=auto"],
    "PyTorch loop": lambda work: [
        "peer_torch.py",
        f"--workload={work}",
        *ROUNDS.get(work, []),
    ],
    "FedJAX": lambda work: [
        "peer_fedjax.py",
        f"--workload={work}",
        *ROUNDS.get(work, []),
    ],
    "one model, no federation": lambda work: (
        ["benchmark.py", "--workload=W2", "--strategy=central"] if work == "W2" else None
    ),
}

Times = list[dict[str, dict[str, float]]]  # for each repeat, {workload: {program: s a round}}


def main() -> None:
    """Run the command of the module's description."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", help="the Python of an environment with PyTorch")
    parser.add_argument("--fedjax", help="the Python of an environment with FedJAX")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if not (args.print or args.write):
        if not (args.torch and args.fedjax):
            parser.error("give --torch=PYTHON and --fedjax=PYTHON, or --print or --write")
        time_all(args)
    text = shown(json.loads(TIMES.read_text()))
    if args.write:
        measure.write(PAGE, NAME, text)
    else:
        print(text)


def time_all(args: argparse.Namespace) -> None:
    """Measure `args.repeats` times and write the times after each repeat."""
    pythons = {"peer_torch.py": args.torch, "peer_fedjax.py": args.fedjax}
    facts, times = {"commit": measure.commit()}, []
    for _ in range(args.repeats):
        times.append({work: time_once(work, pythons) for work in WORKLOADS})
        TIMES.write_text(json.dumps(facts | {"seconds_per_round": times}, indent=1) + "\n")


def time_once(work: str, pythons: dict[str, str]) -> dict[str, float]:
    """The seconds of a round of each program."""
    seconds = {}
    for name, arguments in PROGRAMS.items():
        if words := arguments(work):
            command = [pythons.get(words[0], sys.executable), *words]
            done = subprocess.run(
                command, cwd=Path(__file__).parent, check=True, stdout=subprocess.PIPE, text=True
            )
            seconds[name] = json.loads(done.stdout.splitlines()[-1])["seconds_per_round"]
            print(f"{work}, {name}: {seconds[name]} s a round", flush=True)
    return seconds


def shown(measured: dict) -> str:
    """The table in Markdown, followed by a line that says where its numbers come from."""
    times = measured["seconds_per_round"]
    others = [name for name in PROGRAMS if name != OURS]
    rows = [[w, pace(times, w), *(ratio(times, w, name) for name in others)] for w in WORKLOADS]
    title = (
        "Seconds of a round of this package, and the time of others relative to it (higher is"
        f" slower): the medians of {len(times)} repeats, and the range of the ratios."
    )
    table = formats.Table(title, ["", "seconds", *others], rows)
    source = f"Command: `python launch/speed/compare.py`; commit: {measured['commit']}."
    return f"{formats.markdown(table)}\n\n{source}"


def ratio(times: Times, work: str, name: str) -> str:
    """The median and the range, over repeats, of a program's time relative to this package's."""
    each = [of[work][name] / of[work][OURS] for of in times if name in of[work]]
    if not each:
        return formats.NONE
    return f"{np.median(each):.2g} ({min(each):.2g} to {max(each):.2g})"


def pace(times: Times, work: str) -> str:
    """The median over repeats of the seconds that this package needs for a round."""
    return f"{np.median([of[work][OURS] for of in times]):.2g}"


if __name__ == "__main__":
    main()
