"""Prepares data that are too large to be decoded at once.

python -m fedjax_lab.data prepare --config=configs/X.py --out=FOLDER [--config.data.size=224 ...]

Reads the examples of the source that the config names (config.data), a part at a time, and writes
them to FOLDER as ArrayRecord files, with their labels beside them. A run reads them when it needs
them: --config.data.name=records --config.data.path=FOLDER. The same command goes on where an
earlier one has ended, and writes damaged files again. Needs the extra `stream`.

Exit codes: 0 done; 1 the machine failed (disk, memory): what was written is kept; 2 bad input, in
one line; 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import ml_collections
from tqdm import tqdm

from fedjax_lab import command
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.data import record_writer
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput, check_path, nearest, parse, quoted
from fedjax_lab.main import split_overrides
from fedjax_lab.registry import keyword_defaults, look_up
from fedjax_lab.running import lock

COMMANDS = ("prepare",)


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    config, out = _parse(argv[1:])
    with lock.owned(out):  # before anything is loaded
        dataset = undecoded(config.data)
        follow(record_writer.write(dataset, out, config.data.name), dataset, out)
    print(f"read it with --config.data.name=records --config.data.path={out}")
    return 0


def _parse(arguments):
    """The config and the folder to write."""
    arguments, overrides = split_overrides(arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("command", nargs="?")
    for flag in ("--config", "--out"):
        parser.add_argument(flag)
    args = parse(parser, arguments)
    if args.command not in COMMANDS:
        what = f"no command {quoted(args.command)}" if args.command else "which command?"
        raise BadInput(f"{what}; {nearest(args.command or '', COMMANDS)}")
    check_path("--out", args.out)
    for flag, example in (("config", "configs/hfedf_pacs.py"), ("out", "records/pacs")):
        if not getattr(args, flag):
            raise BadInput(f"--{flag} is missing; for example --{flag}={example}")
    return resolve(load_config(args.config), overrides), Path(args.out)


def undecoded(section: ml_collections.ConfigDict) -> Dataset:
    """The dataset of a config's section `data`; its images are decoded when they are asked for."""
    source = look_up("data", section.name)
    settings = {key: section[key] for key in keyword_defaults(source)}
    return getattr(source, "listing", source)(**settings)


def follow(written: Iterable[record_writer.Progress], dataset: Dataset, out: Path) -> None:
    """Tells how far it is: a bar on a terminal, in a pipe a line for each shard."""
    began, total, hidden = time.monotonic(), len(dataset.x), not sys.stderr.isatty()
    print(f"{total} examples {list(dataset.x.shape[1:])} {dataset.x.dtype} to {out}", flush=True)
    shards_before = 0
    with tqdm(total=total, unit=" examples", disable=hidden, dynamic_ncols=True) as bar:
        for done in written:
            bar.update(done.examples - bar.n)
            if hidden and done.shards > shards_before:
                seconds = time.monotonic() - began
                print(f"{done.examples}/{total}  {seconds:.1f} s", flush=True)
            shards_before = done.shards


if __name__ == "__main__":
    command.run(main, sys.argv)
