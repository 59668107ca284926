"""The workloads of the speed comparison, and functions that time other libraries on them.

Needs NumPy only. A1 and A2 follow benchmarks of other libraries; the others are defined here:

- W1: a cross-device CNN. W2: many small clients. W3: clients of unequal size. W4: all clients in
  every round. W5: a large population.
- A1: pfl-research's CIFAR-10 benchmark: 1,000 IID clients of 50 images, 50 clients per round, the
  unweighted mean of the uploads, 1,500 rounds, 10,000 test images scored every 10 rounds.
- A2: the sizes of PFLlib's quick start: MNIST on 20 clients, all of which train, each scored in
  every round on its training and its test images (a quarter of its images).
- R18 and CCT: two large models, ten clients, small images.
- VIT: a vision transformer of 1,007,618,058 parameters that several devices hold together
  (config.engine.fsdp), on 16 of 32 clients per round.
- P5 and P6: SCAFFOLD, whose clients keep control variates, with 20 examples for each of 100,000
  clients (1,000 per round) and of 1,000,192 clients (10,240 per round; both multiples of 256).

The images are synthetic and have the true shapes: standard normal noise plus a class mean with
standard deviation 0.5, seed 0, 10 classes. In P5 and P6 they are zeros.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

NUM_CLASSES = 10
WARM_UP = 3
# The number of training images of each client in PFLlib's quick start.
PFLLIB_SIZES = (
    (1972, 374, 1222, 1905, 1437, 4641, 942, 951, 2700, 3004)
    + (2337, 2829, 2709, 1600, 4297, 4086, 2721, 4239, 3949, 4577)
)  # fmt: skip


class Workload(NamedTuple):
    """A pool of examples, the rows that each client holds, and the settings of a round."""

    x: np.ndarray  # [R, H, W, channels] float32: all training images, then all test images
    y: np.ndarray  # [R] int32
    rows: list[np.ndarray]  # client i's training examples, as rows of x
    cohort: int  # clients per round
    batch: int
    epochs: int
    lr: float
    model: str  # the model's name in the project's registry
    test: list[np.ndarray]  # rows of test examples: one array (global), one per client, or none
    weighting: str = "size"  # of the uploads in the server's mean: "size" or "equal"
    rounds: int | None = None  # of the whole run; None if the workload has no fixed length
    eval_every: int = 0  # rounds between evaluations, 0: none
    score_train: bool = False  # an evaluation scores the training examples too
    settings: Mapping[str, Any] = MappingProxyType({})  # keyword arguments of the model
    method: str = "fedavg"
    classes: int = NUM_CLASSES


def images(count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Random images [count, *shape] around one mean per class, and their labels [count]."""
    rng = np.random.default_rng(0)
    means = 0.5 * rng.standard_normal((NUM_CLASSES, *shape), np.float32)
    y = rng.integers(NUM_CLASSES, size=count, dtype=np.int32)
    x = np.empty((count, *shape), np.float32)
    for start in range(0, count, 1000):  # in place, to need no further memory
        part = slice(start, start + 1000)
        rng.standard_normal(out=x[part], dtype=np.float32)
        x[part] += means[y[part]]
    return x, y


def _build(
    sizes: Sequence[int], shape: tuple[int, ...], tests: Sequence[int] = (), **settings: Any
) -> Workload:
    """A workload whose clients hold `sizes` training images; `tests` are the test sets' sizes."""
    x, y = images(sum(sizes) + sum(tests), shape)
    ends = np.cumsum([*sizes, *tests])
    parts = np.split(np.arange(len(y), dtype=np.int32), ends[:-1])
    return Workload(x, y, rows=parts[: len(sizes)], test=parts[len(sizes) :], **settings)


def _lognormal_sizes(clients: int) -> list[int]:
    """W3's sizes: lognormal(5, 1), clipped to [20, 3000]."""
    draws = np.random.default_rng(0).lognormal(5.0, 1.0, clients)
    return np.clip(draws, 20, 3000).astype(int).tolist()


def _w1() -> Workload:
    """A cross-device CNN."""
    return _build(
        [600] * 100, (28, 28, 1), cohort=10, batch=20, epochs=1, model="mcmahan_cnn", lr=0.1
    )


def _w2() -> Workload:
    """Many small clients."""
    return _build([50] * 1000, (8, 8, 1), cohort=20, batch=10, epochs=1, model="mlp", lr=0.1)


def _w3() -> Workload:
    """Unequal clients."""
    return _build(
        _lognormal_sizes(100),
        (28, 28, 1),
        cohort=10,
        batch=20,
        epochs=1,
        model="mcmahan_cnn",
        lr=0.1,
    )


def _w4() -> Workload:
    """All clients in every round."""
    return _build(
        [320] * 20, (28, 28, 1), cohort=20, batch=32, epochs=2, model="mcmahan_cnn", lr=0.1
    )


def _w5() -> Workload:
    """A large population: 2,000,000 images on 100,000 clients."""
    return _build([20] * 100_000, (8, 8, 1), cohort=1000, batch=10, epochs=1, model="mlp", lr=0.1)


def _a1() -> Workload:
    """pfl-research's CIFAR-10 benchmark."""
    return _build(
        [50] * 1000,
        (32, 32, 3),
        cohort=50,
        batch=10,
        epochs=1,
        model="pfl_cnn",
        lr=0.1,
        weighting="equal",
        tests=[10_000],
        eval_every=10,
        rounds=1500,
    )


def _a2() -> Workload:
    """PFLlib's quick start; three training images for each test image."""
    tests = [-(-size // 3) for size in PFLLIB_SIZES]
    return _build(
        PFLLIB_SIZES,
        (28, 28, 1),
        cohort=20,
        batch=10,
        epochs=1,
        model="pfllib_cnn",
        lr=0.005,
        tests=tests,
        eval_every=1,
        score_train=True,
    )


def _large(model: str) -> Workload:
    """A large model on ten clients, all of which train."""
    return _build([500] * 10, (32, 32, 3), cohort=10, batch=50, epochs=1, lr=0.01, model=model)


def _vit() -> Workload:
    """A model of 1e9 parameters; a group of devices holds it and divides a client's batches."""
    settings = {"width": 2048, "depth": 20, "heads": 16, "patch": 2, "remat": True}
    return _build(
        [512] * 32,
        (32, 32, 3),
        cohort=16,
        batch=256,
        epochs=1,
        model="vit",
        settings=settings,
        lr=0.1,
        tests=[1024],
        eval_every=1,
    )


def _population(clients: int, cohort: int) -> Workload:
    """Clients with private state as large as the model, for measuring memory; examples are 0."""
    count = 20 * clients
    x = np.broadcast_to(np.zeros(64, np.uint8), (count, 64))
    rows = list(np.arange(count, dtype=np.int32).reshape(clients, 20))
    y = np.zeros(count, np.int32)
    return Workload(
        x,
        y,
        rows,
        cohort=cohort,
        batch=10,
        epochs=1,
        test=[rows[0]],
        model="mlp",
        lr=0.1,
        method="scaffold",
    )


WORKLOADS = {
    "W1": _w1,
    "W2": _w2,
    "W3": _w3,
    "W4": _w4,
    "W5": _w5,
    "A1": _a1,
    "A2": _a2,
    "R18": partial(_large, "resnet18"),
    "CCT": partial(_large, "cct7"),
    "VIT": _vit,
    "P5": partial(_population, 100_000, 1_000),
    "P6": partial(_population, 1_000_192, 10_240),
}


def load(name: str) -> Workload:
    """The workload `name`, with the same arrays at each call. Raises ValueError if unknown."""
    if name not in WORKLOADS:
        raise ValueError(f"unknown workload {name!r}; choose from {', '.join(WORKLOADS)}")
    return WORKLOADS[name]()


def shares(work: Workload, ids: np.ndarray) -> np.ndarray:
    """The weights of these clients' uploads in the server's mean; they sum to 1."""
    sizes = np.array([len(work.rows[i]) if work.weighting == "size" else 1 for i in ids])
    return sizes / sizes.sum()


def cohorts(work: Workload, rounds: int) -> list[np.ndarray]:
    """The ids of the clients of each round; the same for all libraries that are timed."""
    rng = np.random.default_rng(1)
    return [rng.choice(len(work.rows), work.cohort, replace=False) for _ in range(rounds)]


def measure(
    work: Workload, play_round: Callable[[Any, np.ndarray], Any], state: Any, rounds: int
) -> dict[str, float]:
    """Time rounds of `state = play_round(state, ids)`, after WARM_UP further ones.

    play_round must block until its computation is done. Returns medians over rounds.
    """
    seconds, speeds = [], []
    for ids in cohorts(work, WARM_UP + rounds):
        examples = work.epochs * sum(len(work.rows[i]) for i in ids)
        start = time.perf_counter()
        state = play_round(state, ids)
        seconds.append(time.perf_counter() - start)
        speeds.append(examples / seconds[-1])
    return {
        "seconds_per_round": float(np.median(seconds[WARM_UP:])),
        "examples_per_second": float(np.median(speeds[WARM_UP:])),
    }


def report(name: str, strategy: str, measured: dict[str, float]) -> None:
    """Print the measurements as one JSON line."""
    numbers = {key: float(f"{value:.4g}") for key, value in measured.items()}
    print(json.dumps({"workload": name, "strategy": strategy, **numbers}), flush=True)
