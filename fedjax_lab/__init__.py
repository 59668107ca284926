"""fedjax_lab: a federated-learning simulator in JAX. See README.md."""

__version__ = "0.1.0"


def run(config, *, workdir=None, seeds=None, resume=False, quiet=False):
    """Runs a config (a ConfigDict or dict, as `get_config` gives) and returns a `runner.Result`.

    The same as the command line; with no workdir nothing is written. Raises `errors.BadInput`,
    `runner.Diverged` or `runner.Interrupted`.
    """
    from pathlib import Path

    from fedjax_lab import experiment, runner

    job = experiment.build(experiment.resolve(config), seeds)
    return runner.run(job, Path(workdir) if workdir else None, resume, quiet)
