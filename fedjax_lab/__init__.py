"""fedjax_lab: a federated-learning simulator in JAX. See README.md."""

__version__ = "0.1.0"

STOP = "stop"  # what `on_evaluation` returns to end a run


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
    """Runs a config (a ConfigDict or dict, as `get_config` gives) and returns a `runner.Result`.

    The same as the command line; with no workdir nothing is written. Where the run of a workdir is
    resumed, a config of None stands for the run's own, and seeds of None then for all of its seeds.

    Args:
      config: its sections, each with the values that are not defaults.
      workdir, seeds, resume, profile: as on the command line.
      quiet: whether nothing is printed.
      log: the names of loggers, or functions that begin one; see `running/loggers`.
      on_evaluation: called as on_evaluation(row, state) after each evaluation, once for each seed:
        `row` is the new line of metrics.jsonl, and `state()` gives the seed's state in copies that
        may be kept. Where it returns `fedjax_lab.STOP`, the run ends with this evaluation. What it
        raises ends the run as well, with the state saved. Each of several processes calls it, and
        if one of them asks for a state, all have to.

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
    """A finished or running folder, read without a change to it: a `loaded.Run`.

    rounds: of the checkpoint to take; None: the newest one. Raises `errors.BadInput`.
    """
    from fedjax_lab import loaded

    return loaded.load(folder, rounds)
