"""Loads a run from its folder: states, predictions, scores on other data, models as files."""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab import defaults, streams, tree
from fedjax_lab.data import lazy, normalize, precision, rescaling
from fedjax_lab.data.dataset import IGNORED, Dataset, without_marks
from fedjax_lab.engine import processes
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.input import BASE
from fedjax_lab.engine.programs import make_program
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment import experiment, references, titles
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import Experiment, with_base
from fedjax_lab.running import choices, exporting, generation, growth, results, resuming
from fedjax_lab.running.client_models import model_of, no_model
from fedjax_lab.running.storage import cloud, files, provenance
from fedjax_lab.running.storage.checkpoint import Checkpoints
from fedjax_lab.simulation import by_kind, evaluate, needs, simulate
from fedjax_lab.simulation.client_work import (
    WorkRows,
    client_federation,
    fetch,
    make_work,
    work_rows,
)
from fedjax_lab.simulation.population import population_on_host
from fedjax_lab.simulation.simulate import Program
from fedjax_lab.types import ROWS, Client, Plan, PyTree, Stage, State, Weights

ATTEMPTS = 3  # to read a folder while its run may be replacing checkpoints


@defaults.restored()
def load(folder: str | Path, rounds: int | None = None, trust: bool = False) -> "Run":
    """The run of a folder, at one of its checkpoints.

    The folder is not changed, and a command may still be training in it. The data are loaded again
    from the source in the config.

    folder: a local folder, or text such as gs://BUCKET/FOLDER.
    rounds: the number of rounds after which the checkpoint was saved; None: the newest checkpoint.
    trust: whether code that the folder names may be executed; see `references.trusting`.

    Raises BadInput if the folder holds no run or no such checkpoint, if it names code that is not
    trusted, or if the data or files have changed since the run.
    """
    if not isinstance(folder, (str, Path)):
        raise BadInput(f"a folder must be text or a Path, got {quoted(folder)}")
    if rounds is not None and not _is_whole(rounds):
        raise BadInput(f"rounds must be a whole number, got {quoted(rounds)}")
    with cloud.staged(folder, writes=False) as path:
        cloud.fetch(path, whole=True)
        with references.trusting(trust):
            run = _load(path, rounds)
        return replace(run, folder=str(folder)) if cloud.is_remote(path) else run


def build(folder: Path) -> Experiment:
    """The experiment of a run in a local folder, built again from its config and the data.

    Raises BadInput if the folder holds no run, or if the config or the user's code has changed.
    """
    config = files.read_config(folder / "config.json")
    if config is None:
        inside = files.or_run_inside(folder)
        raise BadInput(f"{folder} holds no run: it has no config.json{inside}")
    growth.check_removed(folder, config)
    seeds = config.pop("seeds")
    resolved = resolve(provenance.recalled(config, folder))
    growth.check_config(folder, growth.saved_config(resolved, seeds))
    return experiment.build(resolved, seeds)


def _load(folder, rounds):
    built = build(folder)
    for attempt in range(1, ATTEMPTS + 1):
        before = _checkpoints(folder)
        try:
            return _look(folder, built, rounds)
        except (BadInput, FileNotFoundError):
            if attempt == ATTEMPTS or _checkpoints(folder) == before:
                raise
    raise AssertionError  # the last attempt returns or raises


def _checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def _look(folder, built, rounds):
    processes.call_in_first(lambda: resuming.check_data(folder, built))
    if not (folder / "checkpoints").is_dir():
        raise BadInput(f"{folder} has no checkpoint yet")
    with contextlib.closing(Checkpoints(folder / "checkpoints", read_only=True)) as checkpoints:
        _check_saved(folder, checkpoints.numbers(), rounds)
        new = functools.partial(Engine, built.simulation)
        engine, rows = resuming.read(folder, built, checkpoints, new(), new, rounds)
    states, number = engine.final_states(), engine.stage_number
    summary = files.read_json(folder / "summary.json", files.SUMMARY)
    built = with_base(built)
    return Run(folder, built.config, built, engine.played, rows, states, number, summary)


def from_result(experiment: Experiment, result: Any) -> "Run":
    """The run that has just ended, as `load` returns it; result: a `runner.Result`."""
    rounds = result.metrics[-1]["round"]
    return Run(
        result.workdir,
        experiment.config,
        with_base(experiment),
        rounds,
        result.metrics,
        result.states,
        result.stage,
        result.summary,
    )


def _check_saved(folder, numbers, rounds):
    if not numbers:
        raise BadInput(f"{folder} has no checkpoint yet")
    if rounds is not None and rounds not in numbers:
        raise BadInput(
            f"{folder} has no checkpoint after {rounds} rounds, only after"
            f" {' and '.join(map(str, sorted(numbers)))}"
        )


def check_first_state(config: ml_collections.ConfigDict) -> None:
    """Raises BadInput for a run that started from another run, which is not read again."""
    if config.run.start_from:
        raise BadInput(
            f"the run starts from another run (config.run.start_from={config.run.start_from}),"
            " which is not read again; its state before the first round is not known"
        )


@dataclass(frozen=True, repr=False)
class Run:
    """A run at one of its checkpoints, or one that has just ended.

    In the methods, `client` is the number of a client from 0, or None for the global model, which
    is the model of a client that took no part in training. A client's model is the one with which
    it is scored. `seed` is a seed of the run; None: its first one.
    """

    folder: Path | str | None  # text if it is in the cloud; None: nothing was written
    config: ml_collections.ConfigDict
    experiment: Experiment  # with the dataset, the task and the federation of each seed
    rounds: int  # the number of finished rounds
    rows: list[dict]  # the rows of metrics.jsonl up to this round
    states: list[State]  # the state of each seed; parts that were kept on the host are NumPy arrays
    number: int  # the index of the stage of the method at the checkpoint
    summary: dict | None = None  # the content of summary.json; None: the run is not finished

    def __repr__(self) -> str:
        """The title of the run, its number of rounds, and its folder."""
        at = f" in {self.folder}" if self.folder else ""
        return f"<Run: {titles.run_title(self.config)}, {self.rounds} rounds{at}>"

    @property
    def metrics(self) -> list[dict]:
        """The rows of metrics.jsonl: one for each evaluation and seed."""
        return self.rows

    @property
    def workdir(self) -> Path | str | None:
        """The folder of the run."""
        return self.folder

    def to_pandas(self) -> Any:
        """The rows as a DataFrame with a column for each measure; needs the extra `pandas`."""
        return results.frame(self.rows)

    def plot(self) -> Any:
        """The learning curve, as a figure of matplotlib."""
        from fedjax_lab.running import plots  # imported only here: training needs no matplotlib

        return plots.learning_curve(self.rows, titles.run_title(self.config))

    def confusion(self, client: int | None = None, seed: int | None = None) -> np.ndarray:
        """The numbers [K, K] of global test examples by actual and by predicted class.

        Tokens and pixels without a label are left out. Raises BadInput if there is no global
        test set, or if the task has no classes.
        """
        dataset, objective = self.experiment.dataset, self._plan.objective
        rows = self.experiment.simulation.seeds[self.index(seed)].federation.global_test
        results.check_confusable(objective, rows)
        predictions = self.predict(dataset.x[rows], client, seed)
        return results.confusion(objective, predictions, np.asarray(dataset.y)[rows])

    @property
    def seeds(self) -> list[int]:
        """The seeds of the run, in the order of `states`."""
        return self.experiment.simulation.seed_numbers

    @property
    def stage(self) -> Stage:
        """The stage of the method at the checkpoint."""
        return self.experiment.simulation.stages[self.number]

    @defaults.restored()
    def predict(self, x: Any, client: int | None = None, seed: int | None = None) -> np.ndarray:
        """Predictions for examples x [N, ...] in the format of the run's dataset.

        Of a classification they are logits [N, K]; of a regression numbers in the unit of the
        labels; of binary and multilabel probabilities; of tokens and segmentation the class of each
        position.

        Images may be integers in 0..255 or numbers in 0..1, and gray ones may lack the channel
        axis: they are brought to the scale of the run. Raises BadInput for other scales and shapes.
        """
        x = rescaling.like(x, self._known)
        message, who = self.client_state(client, seed)
        return self._in_batches(self._predict, self._unlabeled(x, seed), message, who)

    @defaults.restored()
    def score(self, data: Dataset | tuple[Any, Any], seed: int | None = None) -> dict:
        """Evaluates the run's models on all examples of another dataset.

        Args:
          data: a dataset, or a pair of examples [N, ...] and labels [N].
          seed: a seed of the run; None: its first one.

        Returns:
          The accuracies in percent and the losses, as in a row of metrics.jsonl: `accuracy` and
          `loss` of the clients' own models, `global` and `global_loss` of the global model, and the
          metrics of config.run.metrics; by domain if the data have several domains.

        Raises:
          BadInput: the data do not have the shape, the scale or the classes of the run's dataset,
            see `predict`.
        """
        marks = self.config.data.no_label
        dataset = _as_dataset(data, self.experiment.dataset, self._plan.objective, marks)
        x = rescaling.like(dataset.x, self._known)
        pool = self._pool(x, dataset.y, dataset.domain, self.index(seed))
        rows = jnp.arange(len(dataset.y))

        @jax.jit
        def counted(settings, *of_client):
            program = self._program(settings)
            plan = program.plan._replace(num_domains=len(dataset.domains))
            return evaluate.count_model(program._replace(plan=plan), *of_client)

        def count(clients):
            of_clients = (
                (self._settings, pool, *self.client_state(i, seed), rows) for i in clients
            )
            each = [jax.device_get(counted(*of_client)) for of_client in of_clients]
            return jax.tree.map(lambda *a: np.stack(a), *each)

        of_clients = count(range(self.num_clients))
        if self.stage.method.newcomer is None:
            some = evaluate.evenly_spaced(self.num_clients)
            average = jax.tree.map(lambda a: a[some], of_clients)
        else:
            average = count([None])
        scores = evaluate.Scores(None, of_clients, average, None)
        return evaluate.summarize(scores, dataset.domains, self._plan.metrics)

    @defaults.restored()
    def model(self, client: int | None = None, seed: int | None = None) -> Weights:
        """The weights of a model of `experiment.task`.

        They are collected from the message to the client and from the state that it keeps.

        Raises BadInput if these do not contain exactly one model.
        """
        message, who = self.client_state(client, seed)
        name, task = self.config.method.name, self.experiment.task
        weights = model_of(name, self.stage.method, task, message, who)
        needed = tree.names(jax.eval_shape(task.init, jax.random.key(0)))
        if not set(needed) <= set(tree.names(weights)):
            raise no_model(name)
        return weights

    @defaults.restored()
    def choose(
        self, questions: Sequence[tuple], client: int | None = None, seed: int | None = None
    ) -> choices.Answers:
        """Answers multiple-choice questions by the log-likelihood of a language model.

        questions: (context, choices, number of the right choice) each; see `running.choices`.

        Raises BadInput if the run's data have no tokenizer.
        """
        if "tokenizer" not in self.config.data or self._plan.objective.name != "tokens":
            raise BadInput("questions need a language model: a run with config.task.name=tokens")
        message, who = self.client_state(client, seed)

        def log_likelihoods(x, y):
            pool = self._pool(x, y, np.zeros(len(x), np.int32), self.index(seed))
            return self._in_batches(self._log_likelihood, pool, message, who)

        length = self.experiment.dataset.x.shape[1]
        return choices.answer(questions, self.config.data.tokenizer, length, log_likelihoods)

    @defaults.restored()
    def generate(
        self,
        prompt: str,
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        raw: bool = False,
        untrained: bool = False,
        draw: int = 0,
        client: int | None = None,
        seed: int | None = None,
    ) -> str:
        """The text with which a language model answers a prompt.

        tokens: the largest number of tokens of the answer, which ends at a special token.
        temperature: of the softmax from which tokens are drawn; 0: the most likely token.
        raw: whether the prompt is the beginning of a text; otherwise it is the first turn of a
          conversation in the run's template, if its data have a tokenizer.
        untrained: whether the model is the one before the first round.
        draw: the seed of the random numbers.

        Raises BadInput if the run has no language model, or if the text is too long for it.
        """
        generation.check(self._plan.objective.name, temperature, tokens)
        spelled = generation.speller(self.config.data, self.experiment.dataset, raw)
        run = self._untrained() if untrained else self

        def logits_of(state, ids):
            settings, message, who = state
            return run._program(settings).method.predict(message, who, ids)

        made = generation.write(
            logits_of,
            (run._settings, *run.client_state(client, seed)),
            spelled.prompt(prompt),
            tokens,
            self.experiment.dataset.x.shape[1],
            spelled.stops,
            temperature,
            jax.random.key(draw),
        )
        return spelled.decode(made)

    def _untrained(self):
        """The run before its first round. Raises BadInput if that was another run's."""
        check_first_state(self.config)
        engine = Engine(self.experiment.simulation)
        return replace(self, states=engine.final_states(), number=0, rounds=0)

    @defaults.restored()
    def export(
        self,
        path: str | Path,
        client: int | None = None,
        seed: int | None = None,
        base: str = "",
    ) -> None:
        """Writes a model to a new file or folder, in the format of its suffix.

        A .safetensors file, or without a suffix a folder of Orbax, has the weights of `model`,
        named `params/LAYER/kernel`; `config.model.pretrained` reads both, unless a part of the
        model is frozen: they have only the weights that are trained. A .stablehlo file has the
        program of `predict`, of examples x [B, ...] float32 in the format of the run's dataset, for
        CPUs, GPUs and TPUs: `jax.export.deserialize(content).call(x)`. A .peft folder has low-rank
        adapters, which the package PEFT and config.adapter.start read; `base` is the name on the
        hub of the frozen model, which PEFT loads: without it config.model.pretrained.

        Raises BadInput for another suffix, and if the path exists or cannot be written.
        """
        path = exporting.check(path)
        if path.suffix == ".stablehlo" and self.experiment.dataset.x.dtype == np.float64:
            raise BadInput(
                f"{path.name}: the run scales its examples in float64, but a program takes float32;"
                " subtract the means of the columns before training, or export .safetensors"
            )
        message, who = self.client_state(client, seed)

        def predict(x):
            return self._predict(
                self._settings, self._unlabeled(x, seed), message, who, jnp.arange(x.shape[0])
            )

        task, base = self.experiment.task, base or self.config.model.pretrained
        exporting.write(path, lambda: self.model(client, seed), predict, task, base)

    @defaults.restored()
    def client_state(self, client: int | None, seed: int | None = None) -> tuple[PyTree, Client]:
        """The message with which the client predicts, and the client with its private state."""
        i, method = self.index(seed), self.stage.method
        if method.predict is None:
            raise BadInput(
                f"stage {self.stage.name} of {self.config.method.name}, after {self.rounds} rounds,"
                " has no model to predict with; load a checkpoint of a later stage"
            )
        if client is None:
            return self._newcomer(i)
        if not _is_whole(client) or client not in range(self.num_clients):
            raise BadInput(f"no client {quoted(client)}; valid: 0 .. {self.num_clients - 1}")
        population = self._populations[i]._replace(private=self.states[i].private)
        person = by_kind.entry(population, client)
        message = self._send(self.states[i].server, person.id)
        if method.tune is None:
            return message, person
        message, private = self._tune(self._settings, message, person, *self._held(i, client))
        return message, person._replace(private=private)

    @property
    def num_clients(self) -> int:
        """The number of clients; with a pooled method, the clients that are scored."""
        return len(self.experiment.simulation.seeds[0].federation.train)

    def _newcomer(self, i):
        method, remedy = self.stage.method, f"; name a client of 0 .. {self.num_clients - 1}"
        what = f"method {self.config.method.name}: "
        needs.check(method, "global_model", what=what, remedy=remedy)
        assert method.newcomer is not None  # checked
        message, private = method.newcomer(self.states[i])
        nobody = jax.tree.map(lambda a: jnp.zeros_like(a[0]), self._populations[i])
        return message, nobody._replace(id=jnp.int32(-1), private=private)

    def _held(self, i, client):
        """The examples of one client's `Work` as a federation and rows, and its random key."""
        federation = self.experiment.simulation.seeds[i].federation
        each = work_rows(self.stage.method, federation)
        sets = [of_set.on_host(np.array([client]))[0] for of_set in each if of_set is not None]
        rows = np.concatenate(sets)
        at = np.maximum(rows, 0)
        held = self._pool(federation.x[at], federation.y[at], federation.domain[at], i)
        keys = streams.make_keys(jax.random.key(self.seeds[i]))
        (key,) = streams.clients(keys.score, jnp.int32(self.rounds), jnp.array([client]))
        places = np.where(rows < 0, -1, np.arange(len(rows)))
        parts = np.split(places, np.cumsum([len(of_set) for of_set in sets])[:-1])
        return held, WorkRows(*map(jnp.asarray, parts)), key

    def _unlabeled(self, x, seed):
        """Examples without labels as a federation; their number may be symbolic."""
        label, nothing = self._plan.objective.label, jnp.zeros(x.shape[0], jnp.int32)
        y = jnp.zeros((x.shape[0], *label.shape), label.dtype)
        return self._pool(x, y, nothing, self.index(seed))

    def _pool(self, x, y, domain, i):
        """Examples as a federation with the preprocessing of seed i of the run."""
        federation, select = self.experiment.simulation.seeds[i].federation, self.stage.frozen
        frozen: PyTree = () if select is None else select(self.states[i].server)
        x, y, domain = (jnp.asarray(a) for a in (x, y, domain))
        y = y.astype(self._plan.objective.label.dtype)
        no_rows: Any = dict.fromkeys(ROWS) | {"traits": {}}
        pool = federation._replace(x=x.reshape(x.shape[0], -1), y=y, domain=domain, frozen=frozen)
        return pool._replace(**no_rows)

    @functools.cached_property
    def _plan(self):
        """The plan of the run, with the stage's view applied to each batch."""
        plan = self.experiment.simulation.plan._replace(equal_steps=False)
        return self.stage.plan(plan)._replace(view=self.stage.view)

    def plan_of_round(self, t: int) -> Plan:
        """The plan of round t, counted from 0, with its learning rates; t is of this stage."""
        return simulate.in_round(self.program(), jnp.int32(t)).plan

    def program(self) -> Program:
        """The program of the stage at the checkpoint, which sets the learning rates of a round."""
        return make_program(self.experiment.simulation, self.number, self._plan, self._settings)

    def _program(self, settings):
        program = make_program(self.experiment.simulation, self.number, self._plan, settings)
        return simulate.in_round(program, jnp.int32(max(self.rounds - 1, 0)))

    @functools.cached_property
    def _settings(self):
        """The frozen weights of the model, if it has any, as settings of a program."""
        base = self.experiment.simulation.base
        return {} if base is None else {BASE: base.load()}

    @functools.cached_property
    def _populations(self):
        simulation = self.experiment.simulation
        return [
            population_on_host(seed.federation, simulation.num_classes) for seed in simulation.seeds
        ]

    @functools.cached_property
    def _predict(self):
        read = self._plan.objective.predict or (lambda logits: logits)
        return self._reading(lambda logits, y: read(logits))

    @functools.cached_property
    def _log_likelihood(self):
        return self._reading(choices.log_likelihood)

    def _reading(self, read):
        """The jitted function of a client's logits and the labels of rows: read(logits, y)."""

        def read_rows(settings, pool, message, client, rows):
            program = self._program(settings)
            batch = fetch(pool, rows, program.plan)
            return read(program.method.predict(message, client, batch.x), batch.y)

        return jax.jit(read_rows)

    def _in_batches(self, of_rows, pool, message, client):
        """The results of a function from `_reading` for all examples of a pool."""
        count, size = len(pool.y), self._plan.eval_batch
        batches = [np.arange(i, min(i + size, count)) for i in range(0, count, size)]
        return np.concatenate(
            [of_rows(self._settings, pool, message, client, rows) for rows in batches]
        )

    @functools.cached_property
    def _send(self):
        return jax.jit(self.stage.method.sends_scored)

    @functools.cached_property
    def _tune(self):
        def tune(settings, message, client, held, rows, key):
            program = self._program(settings)
            pool, (train, validation) = client_federation(held, client), rows
            work, _ = make_work(
                pool,
                train,
                program.plan,
                key,
                validation=validation,
                settings=client.traits.get("settings"),
            )
            return program.method.tune(message, client, work)

        return jax.jit(tune)

    @functools.cached_property
    def _known(self):
        dataset = self.experiment.dataset
        x, train = dataset.x, np.flatnonzero(np.asarray(dataset.test) == 0)
        of_table = not normalize.is_image(x) and x.dtype.kind == "f"
        columns = normalize.moments(x, train) if of_table else None
        low, high = (0.0, 255.0) if normalize.is_pixels(x) else lazy.limits(x)
        if "vocabulary" in self.config.model:  # token ids that the model embeds
            high = max(high, len(dataset.classes) - 1, self.config.model.vocabulary - 1)
        in_float64 = x.dtype == np.float64
        scale = experiment.make_scale(self.config.data, dataset) if in_float64 else None
        return rescaling.Known(x, (low, high), columns, scale)

    def index(self, seed: int | None) -> int:
        """The position of a seed in `seeds`; 0 for None. Raises BadInput for an unknown seed."""
        if seed is None:
            return 0
        if seed not in self.seeds:
            raise BadInput(f"{self.folder} has no seed {quoted(seed)}; valid: {self.seeds}")
        return self.seeds.index(seed)


def _is_whole(number):
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _as_dataset(data, like, objective, marks):
    """The data as a dataset; a pair of examples and labels gets the classes of `like`.

    marks: config.data.no_label.
    """
    if isinstance(data, Dataset):
        _check_labels(np.asarray(data.y), len(data.x), like, objective)
        return data
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise BadInput("data must be a Dataset, or a pair of examples and labels: score((x, y))")
    for name, each in zip(("examples", "labels"), data, strict=True):
        precision.check_unmasked(f"the array of {name}", each)
    x, y = map(np.asarray, data)
    y = without_marks(y, marks) if marks and y.dtype.kind in "iu" else y
    _check_labels(y, len(x), like, objective)
    nothing = np.zeros(len(y), np.int32)
    return Dataset(x, y, nothing, nothing > 0, like.classes, ("",))


def _check_labels(y, count, like, objective):
    """Raises BadInput unless y are labels of `count` examples of the run's task."""
    label = objective.label
    whole = np.issubdtype(label.dtype, np.integer)
    expected = count, *label.shape
    if y.shape != expected or y.dtype.kind not in "iubf" or (whole and (y % 1).any()):
        what = "whole numbers" if whole else "numbers"
        raise BadInput(
            f"labels must be {what} {list(expected)}, one for each of the {count} examples, not"
            f" {y.dtype}{list(y.shape)}"
        )
    positions = label.shape and label.shape == objective.outputs[:-1]
    low, high = (IGNORED if positions else 0), max(len(like.classes), 2) - 1
    if whole and len(y) and not low <= y.min() <= y.max() <= high:
        raise BadInput(f"labels must be {low} .. {high}, not {y.min()} .. {y.max()}")
