"""The command that trains one run.

python -m fedjax_lab.main --config=quickstart[:METHOD] [--config.method.mu=0.1 ...]
                          [--workdir=DIR] [--seeds=0,1,2] [--resume | --resume_or_start]
                          [--partition_only] [--trust]
                          [--profile=ROUNDS] [--log=wandb,mlflow] [--distributed=auto|I/N@HOST:PORT]
                          [--nocompilation_cache] [--flagfile=FILE] [--show_config]
python -m fedjax_lab.main --help-method NAME

--config          the name of a config that comes with the package, or the path of a Python file
                  that defines get_config; if both exist, the file is used. METHOD is passed to
                  get_config: the name of a method, the name of a function in the config file,
                  MODULE:FUNCTION or PATH/FILE.py:FUNCTION
--config.KEY      overrides a key of the config, for example --config.local.lr=0.1. A key that is
                  true or false can also be set with --config.KEY and --noconfig.KEY. If a key is
                  given twice, the last value is used
--workdir         folder for all results; default: a new folder below runs/
--seeds           whole numbers and ranges of them, for example 0,1,2 or 0-2; they are one run;
                  default: config.run.seed
--resume          continues from the newest checkpoint in the workdir. Without --config, the config
                  and the seeds of the workdir are used. Settings that do not affect the finished
                  rounds may change: config.run.rounds (provided that the method's finished stages
                  keep their length), the other run keys eval_every, metrics, patience, target and
                  max_seconds, and engine.state and engine.data. If --seeds has more seeds than the
                  run in DIR, the others are a run of their own beside it, such as DIR-seeds-2, with
                  the config of DIR. A workdir without a run is an error
--resume_or_start
                  as --resume, but starts the run if the workdir holds none; for the scripts of
                  schedulers, which run one command again and again
--partition_only  prints and draws which clients hold which examples, without training
--trust           executes code that the folder of a run names (--workdir with --resume and without
                  --config, or config.run.start_from); code that this command names itself, for
                  example with --config, is executed anyway
--profile         number of rounds to profile, after the first three rounds. The trace in
                  DIR/profile can be opened in TensorBoard (xprof) and in Perfetto; profiling does
                  not change the results
--log             experiment loggers: wandb, mlflow, tensorboard (event files in DIR/tensorboard),
                  or MODULE:FUNCTION of your own, see running/loggers. A resumed run continues the
                  same run of the service. A slow or failing service never blocks training
--distributed     marks this process as one of several that run the same command; see below
--nocompilation_cache
                  compiles all programs again. By default compiled programs are kept for later runs
                  in the user's cache folder: $FEDJAX_LAB_CACHE/programs, below ~/.cache/fedjax_lab
                  if that variable is not set, or JAX_COMPILATION_CACHE_DIR
--show_config     prints each key of the config as a flag, with its value and its meaning, without
                  training
--help_method     prints the description of a method, and the defaults and meanings of its settings;
                  also written --help-method
--flagfile        a file with one flag per line; the flags are inserted at this position

With --distributed=I/N@HOST:PORT this is process I of N, and process 0 can be reached at HOST:PORT;
with --distributed=auto, Slurm, the TPU pod or MPI provides these values. Process 0 writes the
files, but each process writes its part of a checkpoint, so all processes must see the same workdir.
If one process ends early, the others end within half a minute; --resume continues the run.

DIR may be in the cloud: gs://BUCKET/FOLDER (package gcsfs), s3://... (s3fs), az://... (adlfs). The
run then works in a local copy in $TMPDIR, which it uploads with every checkpoint and at its end, so
that --resume can continue it on another machine. Cloud folders have no lock: if a second command
resumes the run, the first one ends at its next upload. Runs with several processes need a local
DIR.

Exit codes: 0 done; 1 a failure of the machine (disk, memory, another process of the run): the saved
state is kept; 2 a usage, config or data error; 3 diverged; 130 interrupted. Every code except 0
comes with a one-line message.
"""

if __name__ == "__main__":  # before the imports, during which an interrupt may arrive
    from fedjax_lab.commands import command

    command.begin()

import contextlib
import re
import sys
import time
from functools import partial
from pathlib import Path

from absl import flags

from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import parse_profile, parse_seeds, split_overrides
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.running.storage import cloud

CONFIG = flags.DEFINE_string("config", None, "NAME or FILE.py, optionally followed by :METHOD")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "folder or gs://... for all results; default: a new folder below runs/"
)
SEEDS = flags.DEFINE_list("seeds", None, "for example 0,1,2 or 0-2; default: config.run.seed")
RESUME = flags.DEFINE_bool("resume", False, "continue from the newest checkpoint of the workdir")
RESUME_OR_START = flags.DEFINE_bool(
    "resume_or_start", False, "as --resume, or start the run if the workdir holds none"
)
PARTITION_ONLY = flags.DEFINE_bool("partition_only", False, "show the partition without training")
TRUST = flags.DEFINE_bool("trust", False, "execute code that the folder of a run names")
PROFILE = flags.DEFINE_string("profile", None, "number of rounds to profile")
LOG = flags.DEFINE_list("log", [], "loggers: wandb, mlflow, tensorboard, MODULE:FUNCTION")
COMPILATION_CACHE = flags.DEFINE_bool("compilation_cache", True, "keep compiled programs on disk")
DISTRIBUTED = flags.DEFINE_string("distributed", None, "this process: auto or I/N@HOST:PORT")

SHOW_CONFIG = flags.DEFINE_bool("show_config", False, "print all config keys without training")
HELP_METHOD = flags.DEFINE_string("help_method", None, "describe a method and its settings")

LONGEST_FLAG = 100  # characters; all flag names are shorter


def main(argv: list[str]) -> int:
    """Runs the command line and returns its exit code."""
    return command.call(_main, argv)


def _main(argv):
    if {"--help", "-help", "-h", "--helpfull", "--helpshort"} & set(argv):
        from fedjax_lab.commands import descriptions

        print(f"{__doc__}\n{descriptions.describe_names()}")
        return 0
    overrides, seeds, profile = _parse(argv)
    if HELP_METHOD.value or SHOW_CONFIG.value:
        return _explain(overrides)
    _configure_jax()

    from fedjax_lab.engine import parallel, processes
    from fedjax_lab.experiment import references
    from fedjax_lab.running import growth, loggers, workdir

    loggers.find(LOG.value)
    parallel.check_devices()
    config = _given_config(overrides) if CONFIG.value else None
    with references.trusting(TRUST.value), cloud.staged(WORKDIR.value or None) as path:
        if RESUME.value and not RESUME_OR_START.value:
            processes.call_in_first(lambda: growth.check_begun(path))
        config, seeds = growth.completed(config, seeds, path, overrides)
        if PARTITION_ONLY.value:
            return processes.call_in_first(lambda: _show_partition(config, seeds[0], path))
        is_new = path is not None and not path.exists()
        first, *others = _runs(path, seeds)
        with workdir.owned(path, config, first[1], _resumes()), _telling(path, is_new):
            code, is_over = _train(config, first[1], None if others else profile, path)
            return code if code or is_over else _train_beside(path, others, profile)


def _configure_jax():
    """Connects the processes of the run and enables the cache, before JAX starts its devices."""
    from fedjax_lab.commands import lost_process
    from fedjax_lab.engine import processes
    from fedjax_lab.running import compilation_cache

    if DISTRIBUTED.value is not None:
        processes.connect(DISTRIBUTED.value)
        lost_process.watch()
    if COMPILATION_CACHE.value:
        compilation_cache.enable()


def _parse(argv):
    """Sets the flags and returns (overrides of config keys, seeds, rounds to profile).

    Seeds and rounds are None if their flag is not given.
    """
    argv, overrides = split_overrides(argv)
    _parse_flags([re.sub("^--?help-method", "--help_method", argument) for argument in argv])
    resumes = _resumes() and WORKDIR.value and not SHOW_CONFIG.value
    if not (CONFIG.value or HELP_METHOD.value or resumes):
        raise BadInput("--config is missing; for example --config=quickstart")
    cloud.check("--workdir", WORKDIR.value)
    seeds, profile = parse_seeds(SEEDS.value), parse_profile(PROFILE.value)
    if _resumes() and not WORKDIR.value:
        flag = "--resume" if RESUME.value else "--resume_or_start"
        raise BadInput(f"{flag} needs the folder of the run: --workdir=DIR")
    return overrides, seeds, profile


def _resumes():
    return RESUME.value or RESUME_OR_START.value


def _explain(overrides):
    """Prints the output of --help-method or --show_config."""
    from fedjax_lab.commands import descriptions

    if HELP_METHOD.value:
        print(descriptions.describe_method(HELP_METHOD.value))
    else:
        print(descriptions.describe_config(_given_config(overrides)))
    return 0


def _given_config(overrides):
    """The resolved config that --config names."""
    from fedjax_lab.experiment.config import resolve
    from fedjax_lab.experiment.config_files import load_config

    return resolve(load_config(CONFIG.value), overrides)


def _runs(path, seeds):
    """The endings of the folders' names and the seeds of the runs, see `siblings.plan`."""
    from fedjax_lab.engine import processes
    from fedjax_lab.running import siblings

    if path is None or not _resumes():
        return [("", seeds)]
    return list(processes.call_in_first(lambda: siblings.plan(path, seeds)).items())


def _train_beside(path, runs, profile):
    """Trains the seeds that the finished run in a folder lacks, in folders beside it.

    runs: endings of the folders' names, and seeds. Returns the exit code.
    """
    from fedjax_lab.running import growth, siblings, workdir

    for ending, seeds in runs:
        config, _ = growth.completed(None, seeds, path)  # so that all are one row of a report
        place = siblings.place(path, ending)
        print(f"\nseeds {','.join(map(str, seeds))}: a run of their own in {place}")
        with cloud.staged(place) as folder, workdir.owned(folder, config, seeds, resume=True):
            how = partial(_how_to_continue, path, is_new=False)
            command.continue_with(how, partial(_saved, folder))
            is_last = (ending, seeds) == runs[-1]
            code, is_over = _train(config, seeds, profile if is_last else None, folder)
            if code or is_over:
                return code
    return 0


@contextlib.contextmanager
def _telling(folder, is_new):
    """Adds to the message of an early end how to continue the run.

    This also works after the local copy of a cloud folder has been removed.
    """
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
    """Loads the data and runs the config in a folder that is owned.

    Returns the exit code, and whether run.max_seconds has ended the run.
    """
    from fedjax_lab.engine import processes
    from fedjax_lab.experiment import experiment
    from fedjax_lab.running import runner

    job = experiment.build(config, seeds)
    folder = path or processes.call_in_first(lambda: _new_folder(config))
    if path is None:
        how = partial(_how_to_continue, folder, is_new=True)
        command.continue_with(how, partial(_saved, folder))
    try:
        result = runner.run(job, folder, _resumes(), profile=profile, log=LOG.value)
    except runner.Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        return 3, False
    finally:
        if path is None and processes.is_first():
            with contextlib.suppress(OSError):
                folder.rmdir()  # was made for this run; it is empty if the run has not begun
    _show(result)
    return 0, result.summary.get("stopped", {}).get("rule") == "max_seconds"


def _how_to_continue(folder, is_new):
    """The last part of the message of a run that ends early.

    Also removes a folder that was made for the run, if nothing was saved in it.
    """
    from fedjax_lab.engine import processes
    from fedjax_lab.running.storage import lock

    if (folder / "config.json").exists():
        return f"continue with the same command and --workdir={cloud.address(folder)} --resume"
    if is_new and processes.is_first():
        lock.discard(folder)
    return "nothing was saved"


def _saved(folder):
    """A message with the round of the newest checkpoint; empty if there is none."""
    rounds = [int(path.name) for path in folder.glob("checkpoints/[0-9]*") if path.name.isdigit()]
    return f"the state after round {max(rounds)} is saved" if rounds else ""


def _parse_flags(argv):
    """Sets the values of the flags. Raises BadInput for any other argument."""
    for argument in argv[1:]:
        name = argument.partition("=")[0]
        if name.startswith("-") and len(name) > LONGEST_FLAG:  # absl's search for similar is slow
            raise BadInput(f"Unknown command line flag {quoted(name.lstrip('-'))}")
    try:
        rest = flags.FLAGS(argv)[1:]
    except (flags.Error, UnicodeError) as error:  # UnicodeError: from reading a --flagfile
        raise BadInput(str(error)) from error
    if rest:
        raise BadInput(f"unexpected argument {quoted(rest[0])}; all arguments are --flags")


def _new_folder(config):
    """Creates a new folder below runs/ and returns its path."""
    from fedjax_lab.experiment.config_files import split
    from fedjax_lab.running.storage import metric_rows

    metric_rows.make_folder(Path("runs"))
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
    from fedjax_lab.analysis import partition_tables
    from fedjax_lab.experiment import experiment
    from fedjax_lab.running import plots
    from fedjax_lab.running.storage import metric_rows

    workdir = path or _new_folder(config)
    dataset = experiment.load_data(config.data)
    (federation,) = experiment.deal_dataset(config, dataset, [seed])
    held = partition_tables.held_by(federation, dataset)
    skew = experiment.feature_skew(config, dataset.x, federation)
    images = partition_tables.skewed_images(dataset, federation, skew)
    print(partition_tables.table(held))
    metric_rows.make_folder(workdir)
    partition_tables.write(held, workdir / "partition.csv")
    plots.save(partition_tables.draw(held, images), workdir / "partition.png")
    print(f"table of all clients: {cloud.address(workdir / 'partition.csv')}")
    print(f"picture: {cloud.address(workdir / 'partition.png')}")
    return 0


def _show(result):
    from fedjax_lab.commands import report

    summary = result.summary
    print()
    print("\n".join([report.closing_table(summary), *summary.get("hints", [])]))
    early = f", stopped by {summary['stopped']['rule']}," if "stopped" in summary else ""
    print(
        f"\n{summary['rounds']} rounds{early} in {summary['seconds']:.1f} s"
        f" (compiled in {summary['compile_seconds']:.1f} s) on {summary['device']}"
    )
    folder, curve = result.workdir, result.workdir / "plots/learning_curve.png"
    drawn = f"  (curve: {cloud.address(curve)})" if curve.exists() else ""
    print(f"results: {cloud.address(folder)}{drawn}")


if __name__ == "__main__":
    from fedjax_lab.engine import parallel, processes

    parallel.use_every_core()
    command.run(main, sys.argv, leave=processes.leave)
