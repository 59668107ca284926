"""Fetches published data sets, and prepares data sets that are too large to decode at once.

python -m fedjax_lab.data get NAME ... [--folder=FOLDER] [--mirror=URL]
python -m fedjax_lab.data list [NAME ...] [--folder=FOLDER]
python -m fedjax_lab.data check [NAME ...] [--folder=FOLDER]
python -m fedjax_lab.data check --config=quickstart [--config.data.name=arrays ...]
python -m fedjax_lab.data prepare --config=configs/X.py --out=FOLDER [--config.data.size=224 ...]

get      Fetches data sets to FOLDER (by default ~/.cache/fedjax_lab, where every data source looks
         for its files). Checksums are verified before anything is unpacked, and a data set appears
         in FOLDER only when it is complete. Run the same command again to continue an interrupted
         one. With --mirror, the files are fetched from URL/FILE and must have the same checksums.
         For a data set that must be fetched by hand, the instructions are printed.
list     Lists the data sets and shows which of them are on this machine. With NAME, prints the
         license, citation, addresses and checksums of each named data set.
check    Reads every byte of the data sets that `get` has fetched and verifies their checksums. With
         --config, reads the data of a config, and prints what its examples are and how they are
         scaled for its model.
prepare  Reads the examples of the data source in the config (config.data) piece by piece, and
         writes them and their labels to FOLDER as ArrayRecord files. A run reads these on demand:
         --config.data.name=records --config.data.path=FOLDER. Run the same command again to
         continue an interrupted one; damaged files are then rewritten. Needs the extra `stream`.

Exit codes: 0 success; 1 the machine or the network failed (files written so far are kept); 2 the
input is invalid, or data are missing, damaged or must be fetched by hand (reported in one line);
130 interrupted.
"""

import argparse
import contextlib
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_collections
from tqdm import tqdm

from fedjax_lab.commands import command
from fedjax_lab.data import normalize, places, record_writer
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.fetching import catalog, fetch, presence
from fedjax_lab.data.fetching.catalog import Published
from fedjax_lab.data.fetching.download import Unavailable
from fedjax_lab.errors import BadInput, check_path, nearest, parse, quoted

LARGE = 100_000_000  # bytes; progress of larger files is printed even without a terminal
CONTINUE = "the same command continues"


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv, CONTINUE, __doc__)


def _main(argv):
    name, *arguments = argv[1:] or [""]
    if name not in COMMANDS:
        what = f"no command {quoted(name)}" if name and name[0] != "-" else "no command is given"
        raise BadInput(f"{what}; {nearest(name, COMMANDS)}")
    return COMMANDS[name](arguments)


# get, list, check


def _get(arguments):
    args = _parse(arguments, "--folder", "--mirror")
    if not args.names:
        raise BadInput("no data set is named; for example `fedjax-lab data get cifar10`")
    for name, data in [(name, catalog.look_up(name)) for name in args.names]:
        if data.by_hand:
            print(_described(name, data))
            raise BadInput(f"{data.title} must be fetched by hand; see the instructions above")
        try:
            _fetch(name, catalog.at_mirror(data, args.mirror), args.folder)
        except Unavailable as error:
            return command.report_failure(f"{data.title} could not be fetched: {error}; {CONTINUE}")
    return 0


def _fetch(name, data, named):
    from fedjax_lab.running.storage import lock

    folder = places.searched(named)[0]
    size = _size(data.size) if data.size else "of unknown size"
    print(f"{data.title}, {size}, to {folder}")
    print(f"license: {data.license}", f"cite: {data.citation}", sep="\n", flush=True)
    staged = fetch.stage(name, folder)
    with lock.owned(staged):
        fetched = fetch.fetch(data, folder, staged, _bar, _tell)
        lock.discard(staged)
    verify = f"`fedjax-lab data check {name}` verifies it"
    what = "verified" if fetched else f"already fetched; {verify}"
    print(f"{folder / data.target}: {what}")
    print(f"use it with {_flags(name, data, folder, named)}")


def _list(arguments):
    args = _parse(arguments, "--folder")
    if args.names:
        print("\n\n".join(_described(name, catalog.look_up(name)) for name in args.names))
        return 0
    for name, data in catalog.PUBLISHED.items():
        size = "by hand" if data.by_hand else _size(data.size)
        here = "here" if _is_here(name, data, args.folder) else "-"
        print(f"{name:18}  {size:>8}  {here:4}  {data.license}")
    print("`fedjax-lab data get NAME` fetches a data set, `fedjax-lab data list NAME` describes it")
    return 0


def _check(arguments):
    if any(argument.lstrip("-").startswith("config") for argument in arguments):
        return _check_config(arguments)
    args = _parse(arguments, "--folder")
    chosen = {name: catalog.look_up(name) for name in args.names} or catalog.PUBLISHED
    problems = []
    for name, data in chosen.items():
        where = next((p for p in places.searched(args.folder) if fetch.is_fetched(data, p)), None)
        problem = fetch.damage(data, where) if where else ""
        if where and not problem:
            print(f"{name:18}  verified, {where / data.target}", flush=True)
        elif problem:
            problems.append(problem)
        elif _is_here(name, data, args.folder):
            print(f"{name:18}  here, but not checked: `get` has not fetched it")
        elif args.names:
            looked = " or ".join(map(str, places.searched(args.folder)))
            problems.append(f"{data.title} is not in {looked}")
    if problems:
        raise BadInput("; ".join(problems))
    return 0


def _check_config(arguments):
    """Prints what the examples of a config are, how many there are and how they are scaled."""
    from fedjax_lab.experiment import experiment

    config = _parse_config(arguments, "config")[0]
    dataset = experiment.load_data(config.data)
    scale = experiment.make_scale(config.data, dataset)
    lines = experiment.describe_examples(config, dataset, scale)
    tests = int(dataset.test.sum())
    print(
        f"{config.data.name}: {len(dataset.y) - tests} training examples, {tests} test examples,"
        f" {len(dataset.classes)} classes, domains: {quoted(', '.join(dataset.domains), 200)}"
    )
    print(*lines, sep="\n")
    return 0


def _parse(arguments, *flags):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("names", nargs="*")
    for flag in flags:
        parser.add_argument(flag, default="")
    args = parse(parser, arguments)
    check_path("--folder", args.folder)
    return args


def _is_here(name: str, data: Published, folder: str) -> bool:
    """Whether a run would find the files, whether `get` has fetched them or not."""
    fetched = any(fetch.is_fetched(data, place) for place in places.searched(folder))
    return fetched or presence.has_files(name, folder)


def _flags(name: str, data: Published, folder: Path, named: str) -> str:
    """The flags of a run that uses the data set."""
    settings = [("name", data.reader or name), *data.settings]
    if folder not in places.searched(""):
        settings += [("folder", named)]
    return " ".join(f"--config.data.{key}={value}" for key, value in settings)


def _described(name: str, data: Published) -> str:
    """The description of a data set: license, citation, files, and how to fetch it by hand."""
    lines = [
        f"{name}: {data.title}",
        f"home: {data.home}",
        f"license: {data.license}",
        f"cite: {data.citation}",
    ]
    for file in data.files:
        size = f"{file.size} bytes" if file.size else "size not published"
        lines += [f"file: {file.path}, {size}, {file.checksum}"]
        lines += [f"  {address}" for address in file.addresses]
    if data.by_hand:
        lines += textwrap.wrap(f"by hand: {data.by_hand}", 100, break_on_hyphens=False)
    return "\n".join(lines)


def _size(size: int) -> str:
    if not size:
        return "unknown"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


class Tenths:
    """A substitute for a progress bar without a terminal: one line per tenth of a large file."""

    def __init__(self, name: str, size: int):
        self.name, self.size = name, size
        self.n = self.shown_tenth = 0.0

    def update(self, more: float) -> None:
        """Counts `more` further bytes."""
        self.n += more
        if self.size < LARGE:
            return
        tenth = 10 * self.n // self.size
        if tenth > self.shown_tenth:
            self.shown_tenth = tenth
            _tell(f"{self.name}: {_size(int(self.n))} of {_size(self.size)}")


@contextlib.contextmanager
def _bar(name: str, size: int) -> Iterator[Any]:
    """Shows how many bytes of a file have been processed."""
    if not sys.stderr.isatty():
        yield Tenths(name, size)
        return
    with tqdm(desc=name, total=size or None, unit="B", unit_scale=True, dynamic_ncols=True) as bar:
        yield bar


def _tell(line: str) -> None:
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


# prepare


def _prepare(arguments):
    from fedjax_lab.running.storage import lock

    config, args = _parse_config(arguments, "config", "out")
    out = Path(args.out)
    with lock.owned(out):  # before anything is loaded
        dataset = undecoded(config.data)
        follow(record_writer.write(dataset, out, config.data.name), dataset, out)
    print(f"use it with --config.data.name=records --config.data.path={out}")
    return 0


EXAMPLES = {"config": "configs/hfedf_pacs.py", "out": "records/pacs"}


def _parse_config(arguments, *names):
    """The resolved config that the arguments name, and the values of these flags."""
    from fedjax_lab.commands.arguments import split_overrides
    from fedjax_lab.experiment.config import resolve
    from fedjax_lab.experiment.config_files import load_config

    arguments, overrides = split_overrides(arguments)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}")
    args = parse(parser, arguments)
    if "out" in names:
        check_path("--out", args.out)
    for name in names:
        if not getattr(args, name):
            raise BadInput(f"--{name} is missing; for example --{name}={EXAMPLES[name]}")
    return resolve(load_config(args.config), overrides), args


def undecoded(section: ml_collections.ConfigDict) -> Dataset:
    """The dataset of a config's section `data`, whose images are decoded on demand."""
    from fedjax_lab.experiment.registry import keyword_defaults, look_up

    source = look_up("data", section.name)
    settings = {key: section[key] for key in keyword_defaults(source)}
    dataset = getattr(source, "listing", source)(**settings)
    return dataset._replace(x=normalize.as_meant(dataset.x))


def follow(written: Iterable[record_writer.Progress], dataset: Dataset, out: Path) -> None:
    """Reports the progress: as a bar on a terminal, otherwise as one line per shard."""
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


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "get": _get,
    "list": _list,
    "check": _check,
    "prepare": _prepare,
}
