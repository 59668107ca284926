"""The command that writes curves, pictures and configs of runs as event files for TensorBoard.

python -m fedjax_lab.tensorboard DIR... [--logdir=runs/tensorboard] [--follow]
tensorboard --logdir=runs/tensorboard         # the viewer: pip install tensorboard

DIR: folders of runs, finished or unfinished, or folders that contain runs (for example of a sweep);
also gs://BUCKET/DIR. TensorBoard shows each run as RUN, with its config.json as text and its
pictures, and each of its seeds as RUN/seed-0 and so on, with the evaluations by round. RUN is the
path of the run's folder relative to DIR, or relative to the common parent of several DIRs; a single
run has the name of its folder. Wall times are the time at which config.json was written (for cloud
folders: downloaded) plus the training seconds of one seed.

--logdir    the folder of the event files. Earlier files that this command wrote there for runs of
            the same names are replaced; a viewer started with --load_fast=false needs a restart
--follow    adds new evaluations, pictures and runs as they appear, until Ctrl-C

Exit codes: 0 success; 1 a failure of the machine (disk, memory); 2 invalid usage, config or data,
reported in one line; 130 interrupted.
"""

if __name__ == "__main__":  # before the imports, during which an interrupt may arrive
    from fedjax_lab.commands import command

    command.begin()

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_lab.analysis import runs
from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import make_parser
from fedjax_lab.errors import MACHINE, BadInput, missing, parse, printable
from fedjax_lab.running import interrupts
from fedjax_lab.running.loggers.event_files import EventFiles
from fedjax_lab.running.storage import cloud, files

POLL_SECONDS = 5


class Written(NamedTuple):
    """What a run's event files already contain."""

    files: EventFiles | None  # open event files of the run; None: they are closed
    lines: list[str]  # the config, then the evaluations
    stamps: dict[Path, tuple[int, int]]  # (modification time in ns, bytes) of the run's files


NOTHING = Written(None, [], {})


def main(argv: list[str]) -> int:
    """Runs the command with these arguments, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command writes all files again", __doc__)


def _main(argv):
    args = _arguments(argv)
    with cloud.read(args.folders) as args.folders:
        written = update(args.folders, args.logdir, {}, args.follow)
        count = sum(bool(run.lines) for run in written.values())
        shown = f"{count} run{'s' * (count > 1)} in {args.logdir}"
        print(f"{shown}; see tensorboard --logdir={args.logdir}", flush=True)
        if args.follow:
            _follow(args, written)
    return 0


def _arguments(argv):
    parser = make_parser()
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--logdir", type=Path, default=Path("runs/tensorboard"))
    parser.add_argument("--follow", action="store_true")
    args = parse(parser, argv)
    cloud.check_local("--logdir", args.logdir)
    if not args.folders:
        raise BadInput("no folder is given; for example `fedjax-lab tensorboard runs/my_run`")
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise missing(error, "tensorboard") from error
    return args


def _follow(args, written):
    with interrupts.delayed("stopped following the runs") as stop:
        while not stop.wait(POLL_SECONDS):
            for folder in args.folders:
                cloud.fetch(folder)
            written = update(args.folders, args.logdir, written, follow=True)


def update(
    folders: Sequence[Path], logdir: Path, written: dict[Path, Written], follow: bool = False
) -> dict[Path, Written]:
    """Updates the event files with the current state of the runs in `folders`.

    written: the result of the last call; a run that is not in it is written from its beginning.
    follow: whether the files of unfinished runs stay open; closed files are written anew.

    Returns what the event files of each run contain. A run with damaged files is skipped with a
    note on stderr.

    Raises BadInput if there is no other run, or if `logdir` cannot be written or lies inside a
    run's folder.
    """
    run_folders = runs.find(folders)
    inside = {run.resolve() for run in run_folders}
    base = Path(os.path.commonpath([*map(os.path.abspath, folders)]))
    base = base.parent if (base / "config.json").exists() else base
    new, faults = {}, []
    for run in run_folders:
        target = logdir / Path(os.path.abspath(run)).relative_to(base)
        if inside & {target.resolve(), *target.resolve().parents}:
            raise BadInput(f"{target} is in the folder of a run; choose another --logdir")
        try:
            new[run] = _write(run, target, written.get(run, NOTHING), follow)
        except files.Damaged as error:
            faults.append(error)
            old = written.get(run, NOTHING)
            new[run] = old._replace(stamps=_stamps(run))  # read again when a file has changed
        except OSError as error:
            if error.errno in MACHINE:
                raise
            raise BadInput(f"cannot write {target} from {run}: {error.strerror}") from error
    if faults and not any(run.lines for run in new.values()):
        raise faults[0]
    for fault in faults:
        print(cloud.named(f"{printable(str(fault))}; left out"), file=sys.stderr)
    return new


def _write(folder, target, old, follow):
    """Writes what is new in a run to its event files; returns what they then contain."""
    stamps = _stamps(folder)
    if stamps == old.stamps:
        return old
    run, config = runs.read(folder), (folder / "config.json").read_text(encoding="utf-8")
    lines, began = [config, *map(json.dumps, run.rows)], stamps[folder / "config.json"][0] / 1e9
    events = old.files
    is_new = events is None or lines[: len(old.lines)] != old.lines
    if is_new:
        if events is not None:
            events.discard()
        old, events = NOTHING, EventFiles(target)
    try:
        if is_new:
            events.add_config(config, began)
        events.add_rows(run.rows[max(0, len(old.lines) - 1) :], began)
        after = run.rows[-1]["round"] if run.rows else 0
        for path, stamp in stamps.items():
            if path.suffix == ".png" and stamp != old.stamps.get(path):
                tag = path.relative_to(folder).with_suffix("").as_posix()
                events.add_picture(after, path, tag)
        stays_open = follow and folder / "summary.json" not in stamps
        (events.flush if stays_open else events.close)()
    except BaseException:
        events.discard()
        raise
    return Written(events if stays_open else None, lines, stamps)


def _stamps(folder):
    names = ("config.json", "metrics.jsonl", "summary.json", "partition.png")
    files = [*(folder / name for name in names), *sorted(folder.glob("plots/*.png"))]
    stats = {path: path.stat() for path in files if path.is_file()}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}


if __name__ == "__main__":
    command.run(main, sys.argv[1:])
