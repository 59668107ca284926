"""The command line of a run. The only file with absl flags.

python -m fedjax_lab.main --config=configs/quickstart.py[:METHOD] [--config.method.mu=0.1]
                          [--workdir=DIR] [--seeds=0,1,2] [--resume] [--partition_only]
                          [--distributed=auto|I/N@HOST:PORT]

With --distributed this is one of several processes that together make one run: number I of N, where
number 0 can be reached at HOST:PORT, or as Slurm, a TPU pod or MPI says. Number 0 writes the files.

Exit codes: 0 done; 2 a usage, config or data error, in one line; 3 diverged; 130 interrupted.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from absl import flags

CONFIG = flags.DEFINE_string("config", None, "a file with get_config, FILE.py or FILE.py:METHOD")
WORKDIR = flags.DEFINE_string("workdir", None, "folder for all results; default: a new one in runs")
SEEDS = flags.DEFINE_list("seeds", None, "comma-separated; default: config.run.seed")
RESUME = flags.DEFINE_bool("resume", False, "go on from the newest checkpoint of the workdir")
PARTITION_ONLY = flags.DEFINE_bool("partition_only", False, "show who holds what; train nothing")
DISTRIBUTED = flags.DEFINE_string("distributed", None, "one of many processes: auto, I/N@HOST:PORT")


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    from fedjax_lab.errors import BadInput, tell

    try:
        return _run(argv)
    except BadInput as error:
        return tell(error)


def _run(argv):
    from fedjax_lab.errors import BadInput

    if {"--help", "-h", "--helpfull"} & set(argv):
        print(__doc__)
        return 0
    argv, overrides = split_overrides(argv)
    try:
        rest = flags.FLAGS(argv)[1:]
    except flags.Error as error:
        raise BadInput(" ".join(str(error).split())) from error
    if rest:
        raise BadInput(f"unexpected argument {rest[0]!r}; everything is a --flag")
    if CONFIG.value is None:
        raise BadInput("--config is missing; for example --config=configs/quickstart.py")
    seeds = parse_seeds(SEEDS.value)

    from fedjax_lab import processes

    if DISTRIBUTED.value is not None:
        processes.join(DISTRIBUTED.value)

    from fedjax_lab import experiment, workdir

    config = experiment.resolve(experiment.load_config(CONFIG.value), overrides)
    seeds = [config.run.seed] if seeds is None else seeds
    if RESUME.value and not WORKDIR.value:
        raise BadInput("--resume needs the folder of the run: --workdir=DIR")
    if PARTITION_ONLY.value:
        return processes.of_first(lambda: _show_partition(config, seeds[0], _folder(config)))
    path = Path(WORKDIR.value) if WORKDIR.value else None
    with workdir.owned(path, config, seeds, RESUME.value):  # before anything is loaded
        return _train(config, seeds)


def _train(config, seeds):
    from fedjax_lab import experiment, processes, runner

    job = experiment.build(config, seeds)
    folder = processes.of_first(lambda: _folder(config))
    try:
        result = runner.run(job, folder, RESUME.value)
    except runner.Diverged as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt as error:
        said = str(error) or "interrupted"
        again = f"--workdir={folder} --resume"
        print(f"{said}; go on with the same command and {again}", file=sys.stderr)
        return 130
    finally:
        if not WORKDIR.value and processes.is_first():
            with contextlib.suppress(OSError):
                folder.rmdir()  # made for this run, and empty if that has not begun
    _show(result)
    return 0


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The arguments without --config.KEY=VALUE (or --config.KEY VALUE), and those as pairs."""
    from fedjax_lab.errors import BadInput

    kept, overrides = [], []
    rest = iter(argv)
    for argument in rest:
        if not argument.startswith(("--config.", "-config.")):
            kept.append(argument)
            continue
        key, equals, value = argument.lstrip("-").removeprefix("config.").partition("=")
        if not equals:
            value = next(rest, None)
        if value is None or (not equals and value.startswith("--")):
            raise BadInput(f"--config.{key} needs a value: --config.{key}=VALUE")
        overrides.append((key, value))
    return kept, overrides


def parse_seeds(texts: list[str] | None) -> list[int] | None:
    """The numbers; None where the flag is not given. BadInput where one is no whole number."""
    from fedjax_lab.errors import BadInput

    try:
        seeds = [int(text) for text in texts or []]
    except ValueError as error:
        raise BadInput(f"--seeds must be whole numbers, got {','.join(texts)}") from error
    return seeds or None


def use_every_core() -> None:
    """On a CPU each core becomes a device, so that clients can share them. Before jax starts."""
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    import jax

    mine = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    jax.config.update("jax_num_cpu_devices", len(mine(0)))


def _folder(config):
    """The one that was named, or one in runs that nobody else has, made here and now."""
    if WORKDIR.value:
        return Path(WORKDIR.value)
    from fedjax_lab import metrics

    metrics.make_folder(Path("runs"))
    name = Path(CONFIG.value.partition(":")[0]).stem
    stem = f"{name}-{config.method.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for ending in ("", *(f"-{i}" for i in range(2, 1000))):
        path = Path("runs") / (stem + ending)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _show_partition(config, seed, workdir):
    from fedjax_lab import experiment, metrics, partition

    counts, dataset = experiment.partition_counts(config, seed)
    print(partition.table(counts, dataset.classes))
    metrics.make_folder(workdir)
    partition.heat_map(counts, dataset.classes, workdir / "partition.png")
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


if __name__ == "__main__":
    use_every_core()
    code = main(sys.argv)
    from fedjax_lab import processes

    processes.leave(code)
