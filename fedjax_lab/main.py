"""The command line of a run. The only file with absl flags.

python -m fedjax_lab.main --config=configs/quickstart.py[:METHOD] [--config.method.mu=0.1]
                          [--workdir=DIR] [--seeds=0,1,2] [--resume] [--partition_only]
                          [--profile=ROUNDS] [--distributed=auto|I/N@HOST:PORT]
                          [--nocompilation_cache] [--show_config]
python -m fedjax_lab.main --help-method NAME

With --show_config every key of the config is printed as a flag, with its value and its meaning, and
nothing is run. --help-method prints the settings of a method, their defaults and meanings.

With --distributed this is one of several processes that together make one run: number I of N, where
number 0 can be reached at HOST:PORT, or as Slurm, a TPU pod or MPI says. Number 0 writes the files,
but each process writes its share of a checkpoint, so that all must see the same WORKDIR. Where one
of them ends too early, the others end within half a minute, and --resume goes on.

With --profile=N the run records N rounds, after the first three, in WORKDIR/profile: a trace that
TensorBoard (xprof) and Perfetto open. The results do not depend on it.

Compiled programs are kept in the user's cache folder for later runs ($FEDJAX_LAB_CACHE/programs, by
default in ~/.cache/fedjax_lab), unless JAX_COMPILATION_CACHE_DIR or --nocompilation_cache is given.

Exit codes: 0 done; 1 the machine failed (disk, memory, another process of the run): what was saved
is kept; 2 a usage, config or data error; 3 diverged; 130 interrupted. Each but 0 comes with one
line.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

    command.begin()

import contextlib
import re
import sys
import time
from functools import partial
from pathlib import Path

from absl import flags

from fedjax_lab import command
from fedjax_lab.errors import BadInput, check_path, cut, quoted

CONFIG = flags.DEFINE_string("config", None, "a file with get_config, FILE.py or FILE.py:METHOD")
WORKDIR = flags.DEFINE_string("workdir", None, "folder for all results; default: a new one in runs")
SEEDS = flags.DEFINE_list("seeds", None, "comma-separated; default: config.run.seed")
RESUME = flags.DEFINE_bool("resume", False, "go on from the newest checkpoint of the workdir")
PARTITION_ONLY = flags.DEFINE_bool("partition_only", False, "show who holds what; train nothing")
PROFILE = flags.DEFINE_string("profile", None, "rounds to record for TensorBoard and Perfetto")
COMPILATION_CACHE = flags.DEFINE_bool("compilation_cache", True, "keep compiled programs on disk")
DISTRIBUTED = flags.DEFINE_string("distributed", None, "one of many processes: auto, I/N@HOST:PORT")

SHOW_CONFIG = flags.DEFINE_bool("show_config", False, "print all keys; train nothing")
HELP_METHOD = flags.DEFINE_string("help_method", None, "print what a method is and its settings")

LONGEST_FLAG = 100  # characters; no flag's name has more


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv)


def _main(argv):
    if {"--help", "-h", "--helpfull"} & set(argv):
        from fedjax_lab import meanings

        print(f"{__doc__}\n{meanings.of_names()}")
        return 0
    overrides, seeds, profile = _parse(argv)
    if HELP_METHOD.value or SHOW_CONFIG.value:
        return _explain(overrides)

    from fedjax_lab import lost_process, processes
    from fedjax_lab.running import compilation_cache

    if DISTRIBUTED.value is not None:
        processes.connect(DISTRIBUTED.value)
        lost_process.watch()
    if COMPILATION_CACHE.value:
        compilation_cache.enable()

    from fedjax_lab import parallel
    from fedjax_lab.config import resolve
    from fedjax_lab.config_files import load_config
    from fedjax_lab.running import workdir

    parallel.check_devices()
    config = resolve(load_config(CONFIG.value), overrides)
    seeds = seeds or [config.run.seed]
    if PARTITION_ONLY.value:
        return processes.of_first(lambda: _show_partition(config, seeds[0]))
    path = Path(WORKDIR.value) if WORKDIR.value else None
    is_new = path is not None and not path.exists()
    with workdir.owned(path, config, seeds, RESUME.value):  # before anything is loaded
        if path is not None:
            command.continue_with(partial(_how_to_continue, path, is_new), partial(_saved, path))
        return _train(config, seeds, profile)


def _parse(argv):
    """Fills the flags; returns the overrides of config keys, the seeds and the rounds to profile.

    Of the last two each is None where it is not given.
    """
    argv, overrides = split_overrides(argv)
    _parse_flags([re.sub("^--?help-method", "--help_method", argument) for argument in argv])
    if not CONFIG.value and not HELP_METHOD.value:
        raise BadInput("--config is missing; for example --config=configs/quickstart.py")
    check_path("--workdir", WORKDIR.value)
    seeds, profile = parse_seeds(SEEDS.value), parse_profile(PROFILE.value)
    if RESUME.value and not WORKDIR.value:
        raise BadInput("--resume needs the folder of the run: --workdir=DIR")
    return overrides, seeds, profile


def _explain(overrides):
    """Prints what --help-method or --show_config asks for."""
    from fedjax_lab import meanings
    from fedjax_lab.config import resolve
    from fedjax_lab.config_files import load_config

    if HELP_METHOD.value:
        print(meanings.of_method(HELP_METHOD.value))
    else:
        print(meanings.of_config(resolve(load_config(CONFIG.value), overrides)))
    return 0


def _train(config, seeds, profile):
    from fedjax_lab import experiment, processes
    from fedjax_lab.running import runner

    job = experiment.build(config, seeds)
    folder = processes.of_first(lambda: _folder(config))
    if not WORKDIR.value:
        how = partial(_how_to_continue, folder, is_new=True)
        command.continue_with(how, partial(_saved, folder))
    try:
        result = runner.run(job, folder, RESUME.value, profile=profile)
    except runner.Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    finally:
        if not WORKDIR.value and processes.is_first():
            with contextlib.suppress(OSError):
                folder.rmdir()  # made for this run, and empty if that has not begun
    _show(result)
    return 0


def _how_to_continue(folder, is_new):
    """The end of the last line of a run that is cut short. Removes a new folder without a run."""
    from fedjax_lab import processes
    from fedjax_lab.running import lock

    if (folder / "config.json").exists():
        return f"continue with the same command and --workdir={folder} --resume"
    if is_new and processes.is_first():
        lock.discard(folder)
    return "nothing was saved"


def _saved(folder):
    """Which checkpoint of the run is the newest."""
    rounds = [int(path.name) for path in folder.glob("checkpoints/[0-9]*") if path.name.isdigit()]
    return f"the state after round {max(rounds)} is saved" if rounds else ""


def _parse_flags(argv):
    """Sets the values of the flags. BadInput where there is anything else."""
    for argument in argv[1:]:
        name = argument.partition("=")[0]
        if name.startswith("-") and len(name) > LONGEST_FLAG:  # absl takes too long to compare it
            raise BadInput(f"Unknown command line flag {quoted(name.lstrip('-'))}")
    try:
        rest = flags.FLAGS(argv)[1:]
    except (flags.Error, UnicodeError) as error:  # the second: of a --flagfile
        raise BadInput(str(error)) from error
    if rest:
        raise BadInput(f"unexpected argument {quoted(rest[0])}; everything is a --flag")


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments without --config.KEY=VALUE (or --config.KEY VALUE), and those as pairs."""
    kept, overrides = [], []
    rest = iter(argv)
    for argument in rest:
        if not argument.startswith(("--config.", "-config.")):
            kept.append(argument)
            continue
        key, equals, text = argument.lstrip("-").removeprefix("config.").partition("=")
        value = text if equals else next(rest, None)
        if value is None or (not equals and value.startswith("--")):
            flag = f"--config.{cut(key, 80)}"
            raise BadInput(f"{flag} needs a value: {flag}=VALUE")
        overrides.append((key, value))
    return kept, overrides


def parse_seeds(texts: list[str] | None) -> list[int] | None:
    """The numbers; None where the flag is not given. BadInput where one is no whole number."""
    try:
        seeds = [int(text) for text in texts or []]
    except ValueError as error:
        given = cut(",".join(texts or []), 80)
        raise BadInput(f"--seeds must be whole numbers, got {given}") from error
    return seeds or None


def parse_profile(text: str | None) -> int | None:
    """The number of rounds; None where the flag is not given. BadInput where it is none."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise BadInput(f"--profile must be a number of rounds, got {cut(text, 80)}") from error


def _folder(config):
    """The one that was named, or one in runs that nobody else has, made here and now."""
    if WORKDIR.value:
        return Path(WORKDIR.value)
    from fedjax_lab.running import metrics

    metrics.make_folder(Path("runs"))
    name = Path(CONFIG.value.partition(":")[0]).stem
    stem = f"{name}-{config.method.name.rpartition(':')[2]}-{time.strftime('%Y%m%d-%H%M%S')}"
    for ending in ("", *(f"-{i}" for i in range(2, 1000))):
        path = Path("runs") / (stem + ending)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _show_partition(config, seed):
    from fedjax_lab import experiment
    from fedjax_lab.analysis import plots
    from fedjax_lab.data import partition
    from fedjax_lab.running import metrics

    workdir = _folder(config)
    counts, dataset = experiment.partition_counts(config, seed)
    print(partition.table(counts, dataset.classes))
    metrics.make_folder(workdir)
    names = [partition.printable(name) for name in dataset.classes]
    plots.save(plots.draw_partition(counts, names), workdir / "partition.png")
    print(f"picture: {workdir / 'partition.png'}")
    return 0


def _show(result):
    from fedjax_lab import report

    summary = result.summary
    print()
    print(report.closing_table(summary))
    print(
        f"\n{summary['rounds']} rounds in {summary['seconds']:.1f} s"
        f" (compiled in {summary['compile_seconds']:.1f} s) on {summary['device']}"
    )
    print(f"results: {result.workdir}  (curve: {result.workdir / 'plots/learning_curve.png'})")


def _leave(code):
    from fedjax_lab import processes

    processes.leave(code)


if __name__ == "__main__":
    from fedjax_lab import parallel

    parallel.use_every_core()
    command.run(main, sys.argv, leave=_leave)
