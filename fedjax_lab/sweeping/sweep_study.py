"""Search by Optuna in a sweep: one study for each method at each point of the grid.

The studies are kept in a journal in the sweep's folder. The commands that run the shares of a sweep
on several machines make draws of the same studies, and optuna-dashboard shows them.
https://optuna.readthedocs.io/en/stable/reference/storages.html
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterator
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

Run = Callable[..., Generator[tuple[Cell, Outcome], None, None]]
# (cells, watch of each cell) -> the cells as they end; takes a cell when there is room for it


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
    trials = _opened(contender, search, out)
    ranges = {key: str(each) for key, each in contender.ranges.items()}
    if trials.user_attrs.get("ranges", ranges) != ranges:
        raise BadInput(
            f"{out / JOURNAL}: {contender.cell.name} has been searched in other ranges; choose"
            f" another stream, such as --tune={search._replace(stream=search.stream + 1)}"
        )
    trials.set_user_attr("ranges", ranges)
    trials.set_user_attr(_made_by(share), False)
    study = Study(contender, search, shared, out, share, trials)
    _adopt(study)
    return study


def _opened(contender, search, out):
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    rounds = contender.cell.config.run.rounds
    what = f"{search.by}, stream {search.stream}, {search.on}, {rounds} rounds"
    return optuna.create_study(
        study_name=f"{contender.cell.name} ({what})",
        storage=JournalStorage(JournalFileBackend(str(out / JOURNAL))),
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=rounds // 4),
        load_if_exists=True,
    )


def _made_by(share):
    """The key under which a study says whether this share has made all its draws."""
    return f"made by {share}"


def _shares(study):
    """The shares of the sweep, as I/N."""
    count = int(study.share.split("/")[1])
    return [f"{number}/{count}" for number in range(count)]


def _adopt(study):
    """Makes share 0 the owner of trials whose command was killed and belongs to no share of today.

    A trial that was killed while its values were chosen fails.
    """
    from optuna.trial import Trial, TrialState

    if study.share != _shares(study)[0]:
        return
    with lock.planning(study.out):  # in which the others ask for trials
        known = {*_shares(study), *lock.held_shares(study.out)}
        for each in study.trials.get_trials(states=[TrialState.RUNNING]):
            if study.contender.ranges.keys() - each.params.keys():
                study.trials.tell(each.number, state=TrialState.FAIL)
            elif each.user_attrs.get("share") not in known:
                Trial(study.trials, each._trial_id).set_user_attr("share", study.share)


def left(study: Study) -> tuple[list[Any], int]:
    """This share's trials that an interrupt has ended, and the number of those it has to begin."""
    number, count = map(int, study.share.split("/"))
    trials = [each for each in study.trials.trials if each.state.name != "FAIL"]
    of_share = _share_trials(study, trials, study.share)
    new = len(range(number, study.search.draws, count)) - len(of_share)
    interrupted = [each for each in of_share if each.state.name == "RUNNING"]
    return interrupted, max(0, min(new, study.search.draws - len(trials)))


def upcoming(study: Study) -> Iterator[tuple[Cell, Any]]:
    """The draws that are `left`, each with its trial, which is chosen when it is needed."""
    from optuna.trial import Trial

    interrupted, new = left(study)
    for each in interrupted:
        yield _cell(study, each.params), Trial(study.trials, each._trial_id)
    for _ in range(new):
        with lock.planning(study.out):
            trial = _asked(study)
            trial.set_user_attr("share", study.share)
        yield _cell(study, trial.params), trial


def play(study: Study, run: Run) -> Generator[tuple[Cell, Outcome], None, None]:
    """Runs the draws that are `left` and yields the outcome of each.

    A draw that equals one in flight, here or in another share, gets the result of that one.
    """
    twins = yield from _play(study, run, upcoming(study))
    while twins:
        if any(_is_free(study, cell) for cell, _ in twins):
            twins = yield from _play(study, run, twins)
        else:
            time.sleep(POLL_SECONDS)
    study.trials.set_user_attr(_made_by(study.share), True)


def _play(study, run, draws):
    """Runs draws like `play`; returns those that equal one that another share is running."""
    trials: dict[str, list] = {}  # of the draws in flight here, by the names of their cells
    twins = []

    def cells():
        for cell, trial in draws:
            if cell.name in trials:
                trials[cell.name].append(trial)
            elif _claim(study, cell, trial):
                trials[cell.name] = [trial]
                yield cell
            else:
                twins.append((cell, trial))

    ends = run(cells(), lambda cell: watch(study, trials[cell.name][0]))
    with contextlib.closing(ends):
        for cell, outcome in ends:
            for trial in trials.pop(cell.name):
                tell(study, trial, cell, outcome)
                yield cell, outcome
    return twins


def _claim(study, cell, trial):
    """Notes whether the draw runs in this share now, which it does if `_is_free`."""
    with lock.planning(study.out):
        free = _is_free(study, cell)
        trial.set_user_attr("runs", free)
    return free


def _is_free(study, cell):
    """Whether no other share is running an equal draw."""
    from optuna.trial import TrialState

    others = {*lock.held_shares(study.out)} - {study.share}
    return not any(
        each.user_attrs.get("runs")
        and each.user_attrs.get("share") in others
        and _cell(study, each.params).name == cell.name
        for each in study.trials.get_trials(states=[TrialState.RUNNING])
    )


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
    """The contender with the draws of all shares.

    Waits while a command runs that has not made all draws of its share.
    """
    for turn in itertools.count():
        made = study.trials.user_attrs
        others = {*lock.held_shares(study.out)} - {study.share}
        finished, failed = _ended(study)
        left = max(0, study.search.draws - len(finished))
        if not left or all(made.get(_made_by(share)) for share in others):
            break
        if turn == 0:
            print(f"waiting for {left} draws of other shares", flush=True)
        time.sleep(POLL_SECONDS)
    cells = [_cell(study, trial.params) for trial in finished + failed]
    draws = list({cell.name: cell for cell in cells}.values())
    return study.contender._replace(draws=draws, missing=max(0, left - len(failed)))


def _ended(study):
    """The trials that have finished, and those that have failed and were not replaced."""
    trials = study.trials.trials
    finished = [each for each in trials if each.state.name in ("COMPLETE", "PRUNED")]
    failed = []
    for number, share in enumerate(shares := _shares(study)):
        quota = len(range(number, study.search.draws, len(shares)))
        owed = quota - len(_share_trials(study, finished, share))
        lost = [each for each in _share_trials(study, trials, share) if each.state.name == "FAIL"]
        failed += lost[::-1][: max(0, owed)]  # later draws have replaced the first ones
    return finished, failed


def _share_trials(study, trials, share):
    """Those of the trials that belong to a share; all of them, if it is the whole sweep."""
    whole = len(_shares(study)) == 1
    return [each for each in trials if whole or each.user_attrs.get("share") == share]
