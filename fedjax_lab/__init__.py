"""fedjax_lab: a federated-learning simulator in JAX. See README.md."""

__version__ = "0.2.0"

STOP = "stop"  # the value that `on_evaluation` returns to end a run


def run(
    config,
    *,
    workdir=None,
    seeds=None,
    resume=False,
    quiet=False,
    profile=None,
    log=(),
    on_evaluation=None,
):
    """Trains a config, as the command line does, and returns a `runner.Result`.

    Without a workdir, nothing is written to disk.

    Args:
      config: a ConfigDict or dict as `get_config` returns it: sections with the values that differ
        from the defaults. When a workdir is resumed, None means the config of the saved run.
      workdir, seeds, resume, profile: as on the command line. When a workdir is resumed without a
        config, seeds of None mean all seeds of the saved run.
      quiet: whether to print nothing.
      log: names of loggers, or functions that create one; see `running/loggers`.
      on_evaluation: called as on_evaluation(row, state) after each evaluation, once for each seed:
        `row` is the new line of metrics.jsonl, and `state()` returns a copy of the seed's state.
        If it returns `fedjax_lab.STOP`, the run ends after this evaluation. If it raises an
        exception, the state is saved, and the exception ends the run. In a run of several
        processes, each process calls it; if one of them calls `state`, all of them must.

    Raises `errors.BadInput`, `runner.Diverged` or `runner.Interrupted`.
    """
    from fedjax_lab import experiment
    from fedjax_lab.config import resolve
    from fedjax_lab.errors import BadInput, quoted
    from fedjax_lab.running import cloud, growth, loggers, runner
    from fedjax_lab.running.workdir import owned

    config = None if config is None and resume and workdir else resolve(config)
    chosen = loggers.find(log)  # before anything is loaded
    if on_evaluation is not None and not callable(on_evaluation):
        raise BadInput(f"on_evaluation must be a function, got {quoted(on_evaluation)}")
    with cloud.staged(workdir or None) as path:
        config, seeds = growth.completed(config, seeds, path)
        with owned(path, config, seeds, resume):  # before anything is loaded
            built = experiment.build(config, seeds)
            result = runner.run(built, path, resume, quiet, profile, chosen, on_evaluation)
        return result._replace(workdir=workdir) if cloud.is_remote(path) else result


def load(folder, *, rounds=None):
    """Reads the folder of a finished or unfinished run, without changing it, as a `loaded.Run`.

    rounds: the round of the checkpoint to read; None: the newest one. Raises `errors.BadInput`.
    """
    from fedjax_lab import loaded

    return loaded.load(folder, rounds)
