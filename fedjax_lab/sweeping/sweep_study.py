"""Search by Optuna in a sweep: one study for each method at each point of the grid.

The studies are kept in a journal in the sweep's folder. The commands that run the shares of a sweep
on several machines make draws of the same studies, and optuna-dashboard shows them.
https://optuna.readthedocs.io/en/stable/reference/storages.html
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab import STOP
from fedjax_lab.errors import BadInput, missing
from fedjax_lab.ranges import Range, rounded
from fedjax_lab.running.storage import lock
from fedjax_lab.sweeping.sweep_folder import DIVERGED, Outcome
from fedjax_lab.sweeping.sweep_plan import Cell, Shared
from fedjax_lab.sweeping.sweep_tuning import Contender, Search, gain_of, make_draw, score_of

JOURNAL = "optuna.log"  # in the folder of the sweep
STARTUP = 5  # draws that are completed before one is ended early
POLL_SECONDS = 2.0


class Study(NamedTuple):
    """A study of Optuna, as a share of the sweep uses it."""

    contender: Contender
    search: Search
    shared: Shared
    out: Path  # the folder of the sweep
    share: str  # I/N
    trials: Any  # optuna.Study


def check() -> None:
    """Raises BadInput if Optuna is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise missing(error, "tune") from error
    optuna.logging.set_verbosity(logging.WARNING)


def begin(
    contender: Contender, search: Search, shared: Shared, out: Path, share: str = "0/1"
) -> Study:
    """Creates the study of a contender, or opens it.

    Raises BadInput if it has been begun with other ranges.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    rounds = contender.cell.config.run.rounds
    what = f"{search.by}, stream {search.stream}, {search.on}, {rounds} rounds"
    trials = optuna.create_study(
        study_name=f"{contender.cell.name} ({what})",
        storage=JournalStorage(JournalFileBackend(str(out / JOURNAL))),
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=rounds // 4),
        load_if_exists=True,
    )
    ranges = {key: str(each) for key, each in contender.ranges.items()}
    if trials.user_attrs.get("ranges", ranges) != ranges:
        raise BadInput(
            f"{out / JOURNAL}: {contender.cell.name} has been searched in other ranges; choose"
            f" another stream, such as --tune={search._replace(stream=search.stream + 1)}"
        )
    trials.set_user_attr("ranges", ranges)
    return Study(contender, search, shared, out, share, trials)


def left(study: Study) -> tuple[list[Any], int]:
    """This share's trials that an interrupt has ended, and the number of those it has to begin."""
    number, count = map(int, study.share.split("/"))
    trials = [each for each in study.trials.trials if each.state.name != "FAIL"]
    own = [each for each in trials if count == 1 or each.user_attrs.get("share") == study.share]
    new = len(range(number, study.search.draws, count)) - len(own)
    interrupted = [each for each in own if each.state.name == "RUNNING"]
    return interrupted, max(0, min(new, study.search.draws - len(trials)))


def upcoming(study: Study) -> Iterator[tuple[Cell, Any]]:
    """The draws that are `left`, each with its trial, which is chosen when it is needed."""
    from optuna.trial import Trial

    interrupted, new = left(study)
    for each in interrupted:
        yield _cell(study, each.params), Trial(study.trials, each._trial_id)
    for _ in range(new):
        trial = _asked(study)
        trial.set_user_attr("share", study.share)
        yield _cell(study, trial.params), trial


def _asked(study):
    """The next trial. The sampler is new each time, so that an interrupt changes no draw."""
    import optuna

    seeds = [study.search.stream, len(study.trials.trials), int(study.share.split("/")[0])]
    (seed,) = np.random.SeedSequence(seeds).generate_state(1)
    study.trials.sampler = optuna.samplers.TPESampler(seed=int(seed))
    return study.trials.ask({key: _form(each) for key, each in study.contender.ranges.items()})


def _form(range_: Range) -> Any:
    """The range as a distribution of Optuna."""
    from optuna import distributions

    if range_.kind == "choice":
        return distributions.CategoricalDistribution(tuple(map(str, range_.values)))
    low, high = range_.values
    return distributions.FloatDistribution(low, high, log=range_.kind == "log")


def _cell(study, values):
    texts = {key: v if isinstance(v, str) else str(rounded(v)) for key, v in values.items()}
    return make_draw(study.contender.cell, study.shared, texts)


def watch(study: Study, trial: Any) -> Callable[[dict, Any], str | None]:
    """A function that is called after each evaluation of a draw.

    It reports the score, and ends the run if it is below the median of earlier draws in this round.
    """

    def report(row, state):
        if (gain := gain_of(row, study.search.on)) is None:  # of a stage that is not scored
            return None
        trial.report(gain, row["round"])
        return STOP if trial.should_prune() else None

    return report


def tell(study: Study, trial: Any, cell: Cell, outcome: Outcome) -> None:
    """Records how a draw has ended. A failed one is replaced when the command is repeated."""
    score = None if outcome.code else score_of(cell, study.out, study.search)
    if score is not None:
        study.trials.tell(trial, score[0])
    else:  # Optuna counts a diverged draw as bad if it is pruned, and ignores a failed one
        study.trials.tell(trial, state=_state(outcome))


def _state(outcome):
    from optuna.trial import TrialState

    return TrialState.PRUNED if outcome.code in (0, DIVERGED) else TrialState.FAIL


def searched(study: Study) -> Contender:
    """The contender with the draws of all shares; waits for those that still run elsewhere."""
    for turn in itertools.count():
        finished = [t for t in study.trials.trials if t.state.name in ("COMPLETE", "PRUNED")]
        left = study.search.draws - len(finished)
        if left <= 0 or lock.count_held(study.out, ".share-*-of-*.lock") < 2:
            break
        if turn == 0:
            print(f"waiting for {left} draws of other shares", flush=True)
        time.sleep(POLL_SECONDS)
    cells = {cell.name: cell for cell in (_cell(study, trial.params) for trial in finished)}
    return study.contender._replace(draws=list(cells.values()), missing=max(left, 0))
