"""Times this package, a plain PyTorch loop and FedJAX on the same workloads, one after another.

    python launch/speed/compare.py --torch=PYTHON --fedjax=PYTHON [--repeats=3]
    python launch/speed/compare.py --print
    python launch/speed/compare.py --write

PYTHON is the Python of an environment with the packages that peer_torch.py or peer_fedjax.py needs.
A repeat runs each program once on each workload, and takes about eight minutes on two cores. Its
times are added to docs/results/speed_peers.json; those of another commit or of other versions are
replaced. --print prints the table of the recorded times without running anything, and --write
writes it to docs/speed.md. Nothing else may run on the machine during the measurement.
"""

if __name__ == "__main__":
    from fedjax_lab.commands import command

    command.begin()

import argparse
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import measure
import numpy as np
import records

from fedjax_lab.analysis import formats
from fedjax_lab.commands import command
from fedjax_lab.errors import BadInput, parse, quoted
from fedjax_lab.running.storage import metric_rows

NAME = "speed_peers"
TIMES = records.RESULTS / f"{NAME}.json"
PAGE = records.ROOT / "docs" / "speed.md"
WORKLOADS = "W1", "W2", "W3", "W4"
OURS, TORCH, FEDJAX, CENTRAL = "fedjax_lab", "PyTorch loop", "FedJAX", "one model, no federation"
SCRIPTS = {
    OURS: ["benchmark.py", "--strategy=auto"],
    TORCH: ["peer_torch.py"],
    FEDJAX: ["peer_fedjax.py"],
    CENTRAL: ["benchmark.py", "--strategy=central"],  # for W2 alone: the others take too long
}
LONG = "W1", "W4"  # workloads whose rounds take seconds: the peers run three of them
PACKAGES = {OURS: ["jax"], TORCH: ["torch"], FEDJAX: ["fedjax", "jax"]}

Times = list[dict[str, dict[str, float]]]  # for each repeat, {workload: {program: s a round}}


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the finished repeats are kept", __doc__)


def _main(argv):
    args = _parse(argv)
    if args.torch:
        pythons = {TORCH: python("--torch", args.torch), FEDJAX: python("--fedjax", args.fedjax)}
        time_all({OURS: sys.executable, CENTRAL: sys.executable} | pythons, args.repeats)
    if not TIMES.exists():
        raise BadInput(f"{TIMES} does not exist: no times have been measured")
    text = shown(json.loads(TIMES.read_text()))
    if args.write:
        measure.write(PAGE, NAME, text)
    else:
        print(text)
    return 0


def _parse(argv):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--torch")
    parser.add_argument("--fedjax")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parse(parser, argv)
    if args.repeats < 1:
        raise BadInput(f"--repeats={args.repeats}: at least 1 is needed")
    ways = bool(args.torch and args.fedjax), args.print, args.write
    if sum(ways) != 1 or bool(args.torch) != bool(args.fedjax):
        raise BadInput("give both --torch=PYTHON and --fedjax=PYTHON, or --print, or --write")
    return args


def python(flag: str, name: str) -> str:
    """The full path of a Python. Raises BadInput if it does not exist."""
    path = shutil.which(name)
    if path is None:
        raise BadInput(f"{flag}={quoted(name)}: no such program")
    return os.path.abspath(path)  # does not follow links, which would leave the environment


def time_all(pythons: dict[str, str], repeats: int) -> None:
    """Measure the programs with their Pythons, and record the times after each repeat."""
    packages = {name: versions(pythons[name], of) for name, of in PACKAGES.items()}
    packages[OURS]["fedjax_lab"] = version("fedjax_lab")
    facts = {"commit": measure.commit(), "cores": os.cpu_count(), "versions": packages}
    recorded = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    times = recorded.pop("seconds_per_round", [])
    times = times if recorded == facts else []
    for _ in range(repeats):
        times.append({work: time_once(work, pythons) for work in WORKLOADS})
        text = json.dumps(facts | {"seconds_per_round": times}, indent=1)
        metric_rows.write_text(TIMES, text + "\n")


def versions(python: str, packages: list[str]) -> dict[str, str]:
    """The versions of packages in a Python's environment. Raises BadInput if one is missing."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    printed = output([python, "-c", code, *packages], f"{python} with {', '.join(packages)}")
    return dict(zip(packages, printed.split(), strict=True))


def time_once(work: str, pythons: dict[str, str]) -> dict[str, float]:
    """The seconds of a round of each program."""
    seconds = {}
    for name, (script, *flags) in SCRIPTS.items():
        if name == CENTRAL and work != "W2":
            continue
        if name in (TORCH, FEDJAX) and work in LONG:
            flags = [*flags, "--rounds=3"]
        words = [pythons[name], script, f"--workload={work}", *flags]
        last = output(words, f"{script} --workload={work}").splitlines()[-1]
        seconds[name] = json.loads(last)["seconds_per_round"]
        print(f"{work}, {name}: {seconds[name]} s a round", flush=True)
    return seconds


def output(words: list[str], name: str) -> str:
    """What a program prints. Raises BadInput, with the last line of its errors, if it fails."""
    folder = Path(__file__).parent
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode or not done.stdout.strip():
        reason = (done.stderr.strip() or "no output").splitlines()[-1]
        raise BadInput(f"{name} failed (exit code {done.returncode}): {reason}")
    return done.stdout


def shown(measured: dict) -> str:
    """The table in Markdown, followed by a line that says where its numbers come from."""
    times = measured["seconds_per_round"]
    others = [name for name in SCRIPTS if name != OURS]
    rows = [[w, pace(times, w), *(ratio(times, w, name) for name in others)] for w in WORKLOADS]
    title = (
        "Seconds of a round of this package, and the time of others relative to it (higher is"
        f" slower): the medians of {len(times)} repeats, and the range of the ratios."
    )
    table = formats.markdown(formats.Table(title, ["", "seconds", *others], rows))
    packages = "; ".join(
        f"{name}: {', '.join(map(' '.join, of.items()))}"
        for name, of in measured["versions"].items()
    )
    flags = f"--torch=PYTHON --fedjax=PYTHON --repeats={len(times)}"
    return (
        f"{table}\n\nCommand: `python launch/speed/compare.py {flags}`; commit:"
        f" {measured['commit']}; cores: {measured['cores']}; versions: {packages}."
    )


def ratio(times: Times, work: str, name: str) -> str:
    """The median and the range, over repeats, of a program's time relative to this package's."""
    each = [of[work][name] / of[work][OURS] for of in times if name in of[work]]
    if not each:
        return formats.NONE
    return f"{number(np.median(each))} ({number(min(each))} to {number(max(each))})"


def pace(times: Times, work: str) -> str:
    """The median over repeats of the seconds that this package needs for a round."""
    return number(np.median([of[work][OURS] for of in times]))


def number(value: float) -> str:
    """Two significant digits, and all digits of an integer part."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


if __name__ == "__main__":
    command.run(main, sys.argv[1:])
