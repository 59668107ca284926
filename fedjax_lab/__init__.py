"""fedjax_lab: a federated-learning simulator in JAX. See README.md."""

__version__ = "0.1.0"


def run(config, *, workdir=None, seeds=None, resume=False, quiet=False, profile=None):
    """Runs a config (a ConfigDict or dict, as `get_config` gives) and returns a `runner.Result`.

    The same as the command line; with no workdir nothing is written. Where the run of a workdir is
    resumed, a config of None stands for the run's own, and seeds of None then for all of its seeds.
    Raises `errors.BadInput`, `runner.Diverged` or `runner.Interrupted`.
    """
    from fedjax_lab import experiment
    from fedjax_lab.config import resolve
    from fedjax_lab.running import cloud, growth, runner
    from fedjax_lab.running.workdir import owned

    config = None if config is None and resume and workdir else resolve(config)
    with cloud.staged(workdir or None) as path:
        config, seeds = growth.completed(config, seeds, path)
        with owned(path, config, seeds, resume):  # before anything is loaded
            result = runner.run(experiment.build(config, seeds), path, resume, quiet, profile)
        return result._replace(workdir=workdir) if cloud.is_remote(path) else result


def load(folder, *, rounds=None):
    """A finished or running folder, read without a change to it: a `loaded.Run`.

    rounds: of the checkpoint to take; None: the newest one. Raises `errors.BadInput`.
    """
    from fedjax_lab import loaded

    return loaded.load(folder, rounds)
