"""The command line of a run. The only file with absl flags.

python -m fedjax_lab.main --config=quickstart[:METHOD] [--config.method.mu=0.1 ...]
                          [--workdir=DIR] [--seeds=0,1,2] [--resume] [--partition_only]
                          [--profile=ROUNDS] [--log=wandb,mlflow] [--distributed=auto|I/N@HOST:PORT]
                          [--nocompilation_cache] [--flagfile=FILE] [--show_config]
python -m fedjax_lab.main --help-method NAME

--config          a config that comes with the package, or the path of a file with a function
                  get_config, which wins; :METHOD is the argument of get_config: a name, that of a
                  function of the file, MODULE:FUNCTION or PATH/FILE.py:FUNCTION
--config.KEY      overrides a key of the config, --config.local.lr=0.1; where the value is true or
                  false also --config.KEY and --noconfig.KEY alone; given twice, the last one holds
--workdir         folder for all results; default: a new one in runs/
--seeds           whole numbers and ranges of them, 0,1,2 or 0-2, which are trained together;
                  default: config.run.seed
--resume          goes on from the newest checkpoint of the workdir. Config and seeds are those of
                  the workdir where no --config is given. What changes nothing that was computed may
                  be another: config.run.rounds (if the method's stages end where they have ended),
                  run.eval_every, run.metrics, engine.state, engine.data; and there may be more
                  --seeds, of which only the new ones are trained
--partition_only  shows who holds what, as a table and a picture, and trains nothing
--profile         rounds to record, after the first three, in DIR/profile: a trace that TensorBoard
                  (xprof) and Perfetto open; the results do not depend on it
--log             loggers that follow the run: wandb, mlflow, tensorboard (event files in
                  DIR/tensorboard), or MODULE:FUNCTION of your own, see running/loggers. A run that
                  is resumed goes on in the same run of the service, but begins a new one there
                  where it gets more seeds; no service holds a run up
--distributed     this is one of several processes that together make one run; see below
--nocompilation_cache
                  compiles all programs anew. Otherwise they are kept for later runs in the user's
                  cache folder ($FEDJAX_LAB_CACHE/programs, by default in ~/.cache/fedjax_lab, or
                  JAX_COMPILATION_CACHE_DIR)
--show_config     prints each key of the config as a flag, with its value and its meaning, and
                  trains nothing
--help_method     prints what a method is, and the defaults and meanings of its settings; also
                  written --help-method
--flagfile        a file with a flag in each line, read in the place of this one

With --distributed this is number I of N processes, where number 0 can be reached at HOST:PORT, or
as Slurm, a TPU pod or MPI says. Number 0 writes the files, but each process writes its share of a
checkpoint, so that all must see the same workdir. Where one of them ends too early, the others end
within half a minute, and --resume goes on.

DIR may be in the cloud: gs://BUCKET/FOLDER (package gcsfs), s3://... (s3fs), az://... (adlfs). The
run then works in a copy in $TMPDIR, which it uploads with every checkpoint and at its end, so that
--resume goes on from another machine. Such a folder has no lock: where a second command resumes the
run, the first one ends at its next upload. A run of several processes cannot be there.

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
from fedjax_lab.errors import BadInput, cut, quoted
from fedjax_lab.running import cloud

CONFIG = flags.DEFINE_string("config", None, "NAME or FILE.py, or with :METHOD behind it")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "folder or gs://... for all results; default: in runs"
)
SEEDS = flags.DEFINE_list("seeds", None, "such as 0,1,2 or 0-2; default: config.run.seed")
RESUME = flags.DEFINE_bool("resume", False, "go on from the newest checkpoint of the workdir")
PARTITION_ONLY = flags.DEFINE_bool("partition_only", False, "show who holds what; train nothing")
PROFILE = flags.DEFINE_string("profile", None, "rounds to record for TensorBoard and Perfetto")
LOG = flags.DEFINE_list("log", [], "loggers: wandb, mlflow, tensorboard, MODULE:FUNCTION")
COMPILATION_CACHE = flags.DEFINE_bool("compilation_cache", True, "keep compiled programs on disk")
DISTRIBUTED = flags.DEFINE_string("distributed", None, "one of many processes: auto, I/N@HOST:PORT")

SHOW_CONFIG = flags.DEFINE_bool("show_config", False, "print all keys; train nothing")
HELP_METHOD = flags.DEFINE_string("help_method", None, "print what a method is and its settings")

LONGEST_FLAG = 100  # characters; no flag's name has more
MOST_SEEDS = 10_000  # of a range


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv)


def _main(argv):
    if {"--help", "-help", "-h", "--helpfull", "--helpshort"} & set(argv):
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
    from fedjax_lab.running import growth, loggers, workdir

    loggers.find(LOG.value)
    parallel.check_devices()
    config = _given_config(overrides) if CONFIG.value else None
    with cloud.staged(WORKDIR.value or None) as path:
        config, seeds = growth.completed(config, seeds, path, overrides)
        if PARTITION_ONLY.value:
            return processes.of_first(lambda: _show_partition(config, seeds[0], path))
        is_new = path is not None and not path.exists()
        with workdir.owned(path, config, seeds, RESUME.value):  # before anything is loaded
            with _telling(path, is_new):
                return _train(config, seeds, profile, path)


def _parse(argv):
    """Fills the flags; returns the overrides of config keys, the seeds and the rounds to profile.

    Of the last two each is None where it is not given.
    """
    argv, overrides = split_overrides(argv)
    _parse_flags([re.sub("^--?help-method", "--help_method", argument) for argument in argv])
    goes_on = RESUME.value and WORKDIR.value and not SHOW_CONFIG.value
    if not (CONFIG.value or HELP_METHOD.value or goes_on):
        raise BadInput("--config is missing; for example --config=quickstart")
    cloud.check("--workdir", WORKDIR.value)
    seeds, profile = parse_seeds(SEEDS.value), parse_profile(PROFILE.value)
    if RESUME.value and not WORKDIR.value:
        raise BadInput("--resume needs the folder of the run: --workdir=DIR")
    return overrides, seeds, profile


def _explain(overrides):
    """Prints what --help-method or --show_config asks for."""
    from fedjax_lab import meanings

    if HELP_METHOD.value:
        print(meanings.of_method(HELP_METHOD.value))
    else:
        print(meanings.of_config(_given_config(overrides)))
    return 0


def _given_config(overrides):
    """The resolved config that --config names."""
    from fedjax_lab.config import resolve
    from fedjax_lab.config_files import load_config

    return resolve(load_config(CONFIG.value), overrides)


@contextlib.contextmanager
def _telling(folder, is_new):
    """What ends the run tells how to continue it, also once a working copy of it is gone."""
    if folder is None:
        yield
        return
    how = partial(_how_to_continue, folder, is_new)
    command.continue_with(how, partial(_saved, folder))
    try:
        yield
    finally:
        if cloud.is_remote(folder):
            words = how()
            command.continue_with(lambda: words)


def _train(config, seeds, profile, path):
    from fedjax_lab import experiment, processes
    from fedjax_lab.running import runner

    job = experiment.build(config, seeds)
    folder = path or processes.of_first(lambda: _new_folder(config))
    if path is None:
        how = partial(_how_to_continue, folder, is_new=True)
        command.continue_with(how, partial(_saved, folder))
    try:
        result = runner.run(job, folder, RESUME.value, profile=profile, log=LOG.value)
    except runner.Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    finally:
        if path is None and processes.is_first():
            with contextlib.suppress(OSError):
                folder.rmdir()  # made for this run, and empty if that has not begun
    _show(result)
    return 0


def _how_to_continue(folder, is_new):
    """The end of the last line of a run that is cut short. Removes a new folder without a run."""
    from fedjax_lab import processes
    from fedjax_lab.running import lock

    if (folder / "config.json").exists():
        return f"continue with the same command and --workdir={cloud.address(folder)} --resume"
    if is_new and processes.is_first():
        lock.discard(folder)
    return "nothing was saved"


def _saved(folder):
    """Which checkpoint of the run is the newest."""
    from fedjax_lab.running import growth

    while (folder / growth.ADDED / "checkpoints").exists():
        folder = folder / growth.ADDED  # what is under way
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


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str | bool]]]:
    """The arguments that are not about a key of the config, and the overrides that the others give.

    Overrides are --config.KEY=VALUE, --config.KEY VALUE and, where the value is true or false,
    --config.KEY and --noconfig.KEY. Files that --flagfile names are read first.
    """
    try:
        argv = flags.FLAGS.read_flags_from_files(argv)
    except (flags.Error, UnicodeError) as error:
        raise BadInput(str(error)) from error
    kept, overrides = [], []
    while argv:
        argument, *argv = argv
        match = re.fullmatch(r"--?(no)?config\.([^=]*)(=.*)?", argument, re.DOTALL)
        if match is None:
            kept.append(argument)
            continue
        negated, key, value = match.groups()
        if value is not None and not negated:
            overrides.append((key, value.removeprefix("=")))
        elif value is None and not negated and argv and not re.match(r"--?[A-Za-z]", argv[0]):
            overrides.append((key, argv.pop(0)))
        elif value is None:
            overrides.append((key, not negated))
        else:
            raise BadInput(f"--noconfig.{cut(key, 80)} takes no value")
    return kept, overrides


def parse_seeds(texts: list[str] | None) -> list[int] | None:
    """The numbers of texts such as 3 and 0-4; None where the flag is not given.

    BadInput where a text is neither a whole number nor a range of them.
    """
    try:
        seeds = [seed for text in texts or [] for seed in _range(text)]
    except ValueError as error:
        given = cut(",".join(texts or []), 80)
        example = f"for example 0,1,2 or 0-4, a range of at most {MOST_SEEDS}"
        raise BadInput(f"--seeds must be whole numbers, got {given}; {example}") from error
    return seeds or None


def _range(text):
    ends = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text.strip())
    if ends is None:
        return [_whole_number(text)]
    seeds = range(int(ends[1]), int(ends[2]) + 1)
    if not 0 < len(seeds) <= MOST_SEEDS:
        raise ValueError("no range, or too long")
    return seeds


def parse_profile(text: str | None) -> int | None:
    """The number of rounds; None where the flag is not given. BadInput where it is none."""
    if text is None:
        return None
    try:
        return _whole_number(text)
    except ValueError as error:
        raise BadInput(f"--profile must be a number of rounds, got {cut(text, 80)}") from error


def _whole_number(text):
    """Of 10 or 1e1. ValueError where the text is no whole number."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _new_folder(config):
    """One in runs that nobody else has, made here and now."""
    from fedjax_lab.config_files import split
    from fedjax_lab.running import metrics

    metrics.make_folder(Path("runs"))
    name = Path(split(CONFIG.value)[0]).stem
    stem = f"{name}-{config.method.name.rpartition(':')[2]}-{time.strftime('%Y%m%d-%H%M%S')}"
    for ending in ("", *(f"-{i}" for i in range(2, 1000))):
        path = Path("runs") / (stem + ending)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _show_partition(config, seed, path):
    from fedjax_lab import experiment
    from fedjax_lab.analysis import dealt, plots
    from fedjax_lab.running import metrics

    workdir = path or _new_folder(config)
    dataset = experiment.load_data(config.data)
    (federation,) = experiment.deal_dataset(config, dataset, [seed])
    held = dealt.held_by(federation, dataset)
    skew = experiment.feature_skew(config, dataset.x, federation)
    images = dealt.skewed_images(dataset, federation, skew)
    print(dealt.table(held))
    metrics.make_folder(workdir)
    dealt.write(held, workdir / "partition.csv")
    plots.save(dealt.draw(held, images), workdir / "partition.png")
    print(f"everybody: {cloud.address(workdir / 'partition.csv')}")
    print(f"picture: {cloud.address(workdir / 'partition.png')}")
    return 0


def _show(result):
    from fedjax_lab import report

    summary = result.summary
    print()
    print(report.closing_table(summary))
    early = f", stopped by {summary['stopped']['rule']}," if "stopped" in summary else ""
    print(
        f"\n{summary['rounds']} rounds{early} in {summary['seconds']:.1f} s"
        f" (compiled in {summary['compile_seconds']:.1f} s) on {summary['device']}"
    )
    folder, curve = result.workdir, result.workdir / "plots/learning_curve.png"
    print(f"results: {cloud.address(folder)}  (curve: {cloud.address(curve)})")


def _leave(code):
    from fedjax_lab import processes

    processes.leave(code)


if __name__ == "__main__":
    from fedjax_lab import parallel

    parallel.use_every_core()
    command.run(main, sys.argv, leave=_leave)
