"""Times the workloads through the engine: one JSON line for each strategy.

    python launch/speed/benchmark.py [--workload=W2,W3] [--strategy=auto,vectorized,...,central]
                               [--convolution=auto] [--chunk=8] [--dtype=bfloat16]
                               [--seconds=10 | --rounds=20] [--whole]

The strategy `central` is an upper bound on speed that no simulator exceeds by much: it trains one
model on the same number of examples, in batches as large as those of all clients of a cohort
together, and 50 rounds are one jitted computation. Rounds are timed without evaluation, after a
warm-up; then one evaluation is timed. With `--whole` a workload that has a length (A1) is also run
to its end with its evaluations, and `total_seconds` is its duration without compilation.
"""

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import jax
import jax.numpy as jnp
import numpy as np
from workloads import WORKLOADS, Workload, load

from fedjax_lab import losses, optim
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.fsdp import even
from fedjax_lab.engine.input import Seed, Simulation
from fedjax_lab.engine.sizes import Devices, divide
from fedjax_lab.engine.width import client_bytes
from fedjax_lab.experiment.federation import make_rows
from fedjax_lab.experiment.registry import look_up
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.scaffold import scaffold
from fedjax_lab.models import conv, kernels
from fedjax_lab.models.frozen import model_of
from fedjax_lab.models.task import has_convolutions, make_task
from fedjax_lab.running.runner import peak_memory
from fedjax_lab.sampling import equal
from fedjax_lab.simulation.client_work import fetch, shuffle
from fedjax_lab.simulation.simulator import make_plan
from fedjax_lab.types import Federation, Stage, Task, Weights

STRATEGIES = ("auto", "vectorized", "chunked", "sequential", "central")
CONVOLUTIONS = ("auto", *conv.FORMULATIONS)
CENTRAL_ROUNDS = 50
METHODS = {"fedavg": fedavg, "scaffold": scaffold}


def build(
    work: Workload,
    strategy: str = "auto",
    convolution: str = "auto",
    chunk: int = 0,
    dtype: str = "float32",
    fsdp: int = 1,
    state: str = "auto",
    data: str = "auto",
    devices: Sequence[jax.Device] | None = None,
    memory: int = 0,
) -> Simulation:
    """The engine's simulation of a workload, for these devices (None: all devices of JAX).

    memory: bytes of each device, for devices that this machine does not have; 0: the free memory
    of JAX's devices, or unknown if `devices` are given.
    """
    platform = (jax.devices() if devices is None else devices)[0].platform
    task = make_model(work, convolution, dtype, platform)
    federation = make_federation(work)
    plan = make_plan(
        [federation],
        rounds=work.rounds or 10**6,
        cohort=work.cohort,
        batch_size=work.batch,
        epochs=work.epochs,
        optimizer=optim.sgd(work.lr),
        objective=task.objective,
        example_shape=work.x.shape[1:],
    )
    plan = plan._replace(eval_batch=even(plan.eval_batch, int(fsdp)))
    method = METHODS[work.method](task)
    if work.weighting == "equal":
        method = method._replace(sample=equal)
    stages = (Stage("train", method, plan.rounds),)
    used = parallel.choose_devices(work.cohort, int(fsdp), devices)
    division = divide(
        [method],
        [federation],
        task.num_classes,
        Devices(
            number=len(used) // int(fsdp),
            memory=memory or parallel.free_memory(devices),
            of_host=used[0].platform == "cpu",
        ),
        state=state,
        data=data,
    )
    chosen = parallel.choose(
        strategy,
        cohort=work.cohort,
        in_turn=has_convolutions(task),
        equal_steps=plan.equal_steps,
        client_bytes=lambda: client_bytes(model_of(task), plan),
        chunk=int(chunk),
        group=int(fsdp),
        devices=devices,
        **division.divided,
    )
    return Simulation(
        seeds=[Seed(0, federation, federation)],
        num_classes=task.num_classes,
        stages=stages,
        plan=plan,
        strategy=chosen,
        placement=division.words,
    )


def make_model(
    work: Workload, convolution: str = "auto", dtype: str = "float32", platform: str = ""
) -> Task:
    """The workload's model, with the convolutions of a platform ("": this machine's)."""
    net = look_up("model", work.model)(work.classes, **work.settings)
    if hasattr(net, "kernels"):
        net = net.clone(kernels=kernels.choose(platform or jax.default_backend(), convolution))
    return make_task(net, work.x.shape[1:], work.classes, compute_dtype=jnp.dtype(dtype))


def make_federation(work: Workload) -> Federation:
    """The pool of examples and each client's rows. A single test set is the global one."""
    (train,) = make_rows([work.rows])
    test = global_test = None
    if len(work.test) == 1:
        global_test = jnp.asarray(work.test[0], jnp.int32)
    elif work.test:
        scored = [
            np.concatenate(pair) if work.score_train else pair[1]
            for pair in zip(work.rows, work.test, strict=True)
        ]
        (test,) = make_rows([scored])
    return Federation(
        work.x.reshape(len(work.x), -1),
        work.y,
        np.zeros(len(work.y), np.int32),
        jnp.float32(0),
        jnp.float32(1),
        train=train,
        validation=None,
        test=test,
        global_test=global_test,
        unseen=None,
    )


def time_engine(work: Workload, args, strategy: str) -> dict:
    """Time a workload with a strategy; returns the values of the JSON line.

    The seconds per round are the median over blocks of about a second, or, with --rounds, the mean
    over that number of rounds without a warm-up.
    """
    simulation = build(work, strategy, args.convolution, args.chunk, args.dtype)
    engine = Engine(simulation)
    engine.compile()
    if not args.rounds:
        for _ in range(3):
            engine.play(10**6)
        engine.evaluate()
    warm = engine.session
    paces = [play_block(engine, args.rounds or 10**6)]
    while not args.rounds and (
        len(paces) < 3 or engine.session.seconds - warm.seconds < args.seconds
    ):
        paces.append(play_block(engine, 10**6))
    began = engine.evaluate_seconds
    engine.evaluate()
    examples, steps, lane_steps = engine.session.totals - warm.totals
    out = {
        "strategy": simulation.strategy.name,
        "seconds_per_round": float(np.median(paces)),
        "examples_per_second": examples / (engine.session.seconds - warm.seconds),
        "utilisation": steps / lane_steps,
        "compile_seconds": engine.compile_seconds,
    }
    if work.test:
        out["seconds_per_evaluation"] = engine.evaluate_seconds - began
    if args.whole and work.rounds:
        out["total_seconds"] = play_whole(engine, work)
    return out


def play_block(engine: Engine, at_most: int) -> float:
    """Seconds per round of one block, or of exactly `at_most` rounds if that is below 10**6."""
    before = engine.session
    goal = engine.played + at_most
    engine.play(at_most)
    while at_most < 10**6 and engine.played < goal:
        engine.play(goal - engine.played)
    now = engine.session
    return (now.seconds - before.seconds) / (now.played - before.played)


def play_whole(engine: Engine, work: Workload) -> float:
    """Seconds of the workload's whole run with its evaluations, without compilation."""
    began = time.perf_counter()
    for _ in range(0, work.rounds, work.eval_every):
        goal = engine.played + work.eval_every
        while engine.played < goal:
            engine.play(goal - engine.played)
        engine.evaluate()
    return time.perf_counter() - began


def time_central(work: Workload, args) -> dict:
    """Time the training of one model, in batches of cohort x batch examples.

    A round has as many examples as an average cohort.
    """
    task = make_model(work, args.convolution, args.dtype)
    federation = jax.tree.map(jnp.asarray, make_federation(work))
    risk = losses.risk(task)
    size, plan = work.cohort * work.batch, build(work, "sequential", args.convolution, 0).plan
    per_round = work.epochs * work.cohort * np.mean([len(rows) for rows in work.rows])
    steps = max(1, round(per_round / size))
    pool = jnp.asarray(np.concatenate(work.rows), jnp.int32)

    def step(order, federation, key, s, w):
        batch = fetch(federation, jax.lax.dynamic_slice(order, (s * size,), (size,)), plan)
        grads = jax.grad(lambda p: risk(Weights(p, w.stats), batch, key)[0])(w.params)
        return w._replace(params=jax.tree.map(lambda p, g: p - work.lr * g, w.params, grads))

    def run(federation, pool, key, w):
        def one(t, w):
            key_t = jax.random.fold_in(key, t)
            start = jax.random.randint(key_t, (), 0, max(1, len(pool) - steps * size))
            order = shuffle(key_t, jax.lax.dynamic_slice(pool, (start,), (steps * size,)))
            return jax.lax.fori_loop(0, steps, partial(step, order, federation, key_t), w)

        return jax.lax.fori_loop(0, CENTRAL_ROUNDS, one, w)

    if steps * size > len(pool):
        pool = jnp.tile(pool, -(-steps * size // len(pool)))
    key, w = jax.random.key(0), task.init(jax.random.key(0))
    began = time.perf_counter()
    run = jax.jit(run).lower(federation, pool, key, w).compile()
    compile_seconds = time.perf_counter() - began
    jax.block_until_ready(run(federation, pool, key, w))
    began, times = time.perf_counter(), []
    while len(times) < 3 or time.perf_counter() - began < args.seconds:
        now = time.perf_counter()
        jax.block_until_ready(run(federation, pool, key, w))
        times.append((time.perf_counter() - now) / CENTRAL_ROUNDS)
    return {
        "strategy": "central",
        "seconds_per_round": float(np.median(times)),
        "examples_per_second": steps * size / float(np.median(times)),
        "utilisation": 1.0,
        "compile_seconds": compile_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="W1,W2,W3,W4", help=", ".join(WORKLOADS))
    parser.add_argument("--strategy", default="auto,central", help=", ".join(STRATEGIES))
    parser.add_argument("--convolution", default="auto", choices=CONVOLUTIONS)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--chunk", type=int, default=0, help="clients per chunk; 0: automatic")
    parser.add_argument("--seconds", type=float, default=10, help="minimum duration of measuring")
    parser.add_argument("--rounds", type=int, default=0, help="number of rounds; no warm-up then")
    parser.add_argument("--whole", action="store_true", help="also run a workload to its end")
    args = parser.parse_args()
    for name in args.workload.split(","):
        work = load(name)
        for strategy in args.strategy.split(","):
            if strategy not in STRATEGIES:
                parser.error(f"unknown strategy {strategy!r}; choose from {', '.join(STRATEGIES)}")
            timed = time_central(work, args) if strategy == "central" else None
            timed = timed or time_engine(work, args, strategy)
            numbers = {k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in timed.items()}
            device = f"{len(jax.devices())} x {jax.devices()[0].device_kind}"
            memory = round(peak_memory() / 2**30, 2)
            asked = {"asked": strategy, "convolution": args.convolution, "dtype": args.dtype}
            line = {"workload": name, **numbers, **asked, "device": device}
            line["peak_memory_gib"] = memory
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
