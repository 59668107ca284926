"""fedjax_lab: a federated-learning simulator in JAX.

`run` trains a config, `load` reads the folder of a run, `audit` attacks it, and `simulator` returns
the pure functions of a method on a federation, for a loop of one's own. The documentation is in
docs/ of the repository.
"""

import sys

__version__ = "0.2.0"

if sys.platform == "win32":
    raise ImportError("fedjax_lab does not run on Windows, which lacks fcntl; use WSL 2")

# `python -m fedjax_lab.sweep` and the other commands are modules of the folder commands.
__path__ = [*__path__, f"{__path__[0]}/commands"]


def __getattr__(name):
    if name == "simulator":  # imported when it is used, so that importing the package stays fast
        from fedjax_lab.simulation.simulator import simulator

        return simulator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    trust=False,
):
    """Runs the training that a config describes. On a CPU it uses every core, as the command does.

    As with the command, compiled programs are kept in the user's cache folder for later runs,
    unless jax has another folder for them (JAX_COMPILATION_CACHE_DIR) or is to keep none
    (JAX_ENABLE_COMPILATION_CACHE=0).

    Args:
      config: a ConfigDict, or a dict as `get_config` returns it: sections with the values that
        differ from the defaults. With `resume`, None means the config of the saved run.
      workdir: the folder for all results, or a cloud address such as gs://BUCKET/FOLDER. None:
        nothing is written to disk.
      seeds: the seeds, which are trained together. None: config.run.seed or, without a config, all
        seeds of the saved run.
      resume: whether to continue from the newest checkpoint in the workdir, if it holds a run.
      quiet: whether to print nothing.
      profile: the number of rounds to profile into WORKDIR/profile. None: no profile.
      log: names of loggers, or functions that create one; see `fedjax_lab.running.loggers`.
      on_evaluation: a function that is called as on_evaluation(row, state) after each evaluation,
        once for each seed: `row` is the new line of metrics.jsonl, and `state()` returns a copy of
        the seed's state. If it returns `fedjax_lab.STOP`, the run ends after this evaluation. If it
        raises an exception, the state is saved, and the exception ends the run. In a run of several
        processes, each process calls it; if one of them calls `state`, all of them must.
      trust: whether code that the folder of a saved run names may be executed; code that this
        process has named in a config may be executed anyway.

    Returns:
      A `loading.Run`, as `load` returns it: its summary, the rows of metrics.jsonl, the final
      states and the folder; it predicts, scores and exports the models of the run.

    Raises:
      BadInput: the config, the seeds or the workdir cannot be used.
      runner.Diverged: a loss or a weight became non-finite.
      runner.Interrupted: a signal, or config.run.max_seconds before the first evaluation, stopped
        the run after its state was saved.
    """
    from fedjax_lab.engine import parallel, processes
    from fedjax_lab.errors import BadInput, quoted
    from fedjax_lab.experiment import experiment, references
    from fedjax_lab.experiment.config import resolve
    from fedjax_lab.running import compilation_cache, growth, loading, loggers, runner
    from fedjax_lab.running.storage import cloud
    from fedjax_lab.running.workdir import owned

    parallel.use_every_core_if_possible()
    compilation_cache.enable()
    config = None if config is None and resume and workdir else resolve(config)
    chosen = loggers.find(log)  # before anything is loaded
    if on_evaluation is not None and not callable(on_evaluation):
        raise BadInput(f"on_evaluation must be a function, got {quoted(on_evaluation)}")
    with references.trusting(trust), cloud.staged(workdir or None) as path:
        config, seeds = growth.completed(config, seeds, path)
        with owned(path, config, seeds, resume):  # before anything is loaded
            built = experiment.build(config, seeds)
            result = runner.run(built, path, resume, quiet, profile, chosen, on_evaluation)
        if cloud.is_remote(path):
            result = result._replace(workdir=workdir)
    if not quiet and processes.is_first():
        from fedjax_lab.commands import report  # imported only for this table

        summary = result.summary
        print("\n".join([report.closing_table(summary), *summary.get("hints", [])]))
    return loading.from_result(built, result)


def load(folder, *, rounds=None, trust=False):
    """Loads a finished or unfinished run from its folder, which is not changed.

    Args:
      folder: the folder of the run, or a cloud address such as gs://BUCKET/FOLDER.
      rounds: the number of rounds after which the checkpoint was saved. None: the newest one.
      trust: whether code that the folder names may be executed: user-defined methods, models and
        other parts. Code that this process has named in a config may be executed anyway.

    Returns:
      A `loading.Run`, which predicts, scores and exports the models of the run.

    Raises:
      BadInput: the folder holds no run or no such checkpoint, names code that is not trusted, or
        the data have changed.
    """
    from fedjax_lab.running import compilation_cache, loading

    compilation_cache.enable()
    return loading.load(folder, rounds, trust)


def audit(run, attack, *, rounds=None, seed=None, trust=False, **settings):
    """Attacks a run, as the command `audit` does.

    Args:
      run: the folder of a finished or unfinished run, to whose files the results are added, or a
        `loading.Run`, as `run` and `load` return it, of which nothing is written.
      attack: the name of an attack, such as "inversion"; `auditing.attacks` has one in each file.
      rounds: for a folder, the number of rounds after which the checkpoint was saved. None: the
        newest one; 0: the model before the first round.
      seed: a seed of the run; None: its first one.
      trust: whether code that the folder names may be executed.
      **settings: those of the attack.

    Returns:
      The `auditing.findings.Findings`: rows of measures, and arrays for pictures.

    Raises:
      BadInput: the attack does not fit the run, or has no such setting.
    """
    from fedjax_lab.auditing import audits
    from fedjax_lab.running import compilation_cache

    compilation_cache.enable()
    return audits.audit(run, attack, rounds, seed, trust, settings)
