"""Measures memory and time with more private state or examples than a device holds.

    python launch/speed/scale.py state --clients=300000 [--state=auto|host|disk]
                                       [--method=scaffold|fedavg] [--rounds=300]
    python launch/speed/scale.py pool --file=/scratch/pool.bin --gigabytes=20 [--data=auto|stream]

`state` runs SCAFFOLD or FedAvg with a small MLP (64-64-10), 20 clients per round, and 20 examples
for each client from a shared pool. `pool` runs FedAvg with an MLP on 32x32x3 images from a file,
which is created if it does not exist, with 50 examples for each client and 50 clients per round.

Prints one JSON line. `peak_bytes` is the peak memory of the process, so one process measures one
case; `anonymous_bytes` leaves out file-backed pages, which the system reclaims when it needs
memory; `device_bytes` is the size of the arrays on the devices. `--full` gives every client private
state from the start. `--cold` first drops the file from the system's cache.
"""

import argparse
import json
import os
import time
from pathlib import Path

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import jax
import numpy as np
import psutil

from fedjax_lab import optim
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.host.host_state import HostState
from fedjax_lab.engine.input import Host, Seed, Simulation
from fedjax_lab.engine.sizes import Devices, divide
from fedjax_lab.engine.width import client_bytes
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.scaffold import scaffold
from fedjax_lab.models import nets
from fedjax_lab.models.frozen import model_of
from fedjax_lab.models.task import make_task
from fedjax_lab.running.runner import peak_memory
from fedjax_lab.types import Federation, Plan, Rows, Stage

CLASSES = 10
IMAGE = (32, 32, 3)


def main() -> None:
    """Measure the case of the command line and print its line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    state, pool = (commands.add_parser(name) for name in ("state", "pool"))
    state.add_argument("--clients", type=int, default=300_000)
    state.add_argument("--state", choices=("auto", "host", "disk"), default="host")
    state.add_argument("--method", choices=("scaffold", "fedavg"), default="scaffold")
    state.add_argument("--full", action="store_true", help="give every client state at the start")
    pool.add_argument("--file", type=Path, required=True)
    pool.add_argument("--gigabytes", type=float, default=20)
    pool.add_argument("--data", choices=("auto", "stream"), default="stream")
    pool.add_argument("--cold", action="store_true")
    for command in (state, pool):
        command.add_argument("--rounds", type=int, default=300)
        command.add_argument("--folder", type=Path, help="folder for the engine's files")
    args = parser.parse_args()
    if args.command == "state" and args.clients < 20:
        parser.error(f"--clients={args.clients} must be at least 20, the number in a round")
    if args.command == "pool" and not args.file.parent.is_dir():
        parser.error(f"--file={args.file}: the folder {args.file.parent} does not exist")
    simulation = state_simulation(args) if args.command == "state" else pool_simulation(args)
    print(json.dumps(vars(args) | measure(simulation, args), default=str), flush=True)


def state_simulation(args) -> Simulation:
    """The simulation of a large population; SCAFFOLD keeps private state for each client."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 64), np.float32)
    federation = make_federation(x, args.clients, 20)
    task = make_task(nets.mlp(CLASSES), (64,), CLASSES)
    plan = Plan(10**6, 20, 10, 1, optim.sgd(0.01), task.objective, equal_steps=True)
    method = {"scaffold": scaffold, "fedavg": fedavg}[args.method](task)
    return simulate(federation, method, task, plan, state=args.state)


def pool_simulation(args) -> Simulation:
    """The simulation of many examples, each of which belongs to one client."""
    size = int(np.prod(IMAGE))
    count = int(args.gigabytes * 1e9 / size) // 50 * 50
    make_file(args.file, count, size)
    x = np.memmap(args.file, np.uint8, "r", shape=(count, size))
    if args.cold:
        drop(args.file)
    if args.data == "auto":
        x = np.array(x)
    federation = make_federation(x, count // 50, 50)._replace(scale=np.float32(1 / 255))
    task = make_task(nets.mlp(CLASSES), IMAGE, CLASSES)
    sgd = optim.sgd(0.01)
    plan = Plan(10**6, 50, 10, 1, sgd, task.objective, example_shape=IMAGE, equal_steps=True)
    return simulate(federation, fedavg(task), task, plan, data=args.data)


def make_federation(x: np.ndarray, clients: int, examples: int) -> Federation:
    """A federation whose clients hold `examples` rows of x each, in turn; labels are random."""
    count = clients * examples
    rows = Rows(
        start=np.arange(0, count, examples, dtype=np.int32),
        count=np.full(clients, examples, np.int32),
        list=np.arange(count, dtype=np.int32) % np.int32(len(x)),
        longest=examples,
    )
    y = np.random.default_rng(0).integers(CLASSES, size=len(x), dtype=np.int32)
    domain, test = np.zeros(len(x), np.int32), np.arange(1000, dtype=np.int32)
    return Federation(x, y, domain, np.float32(0), np.float32(1), rows, None, None, test, None)


def simulate(federation, method, task, plan, state="auto", data="auto") -> Simulation:
    """The simulation of one seed."""
    lent = Devices(len(jax.devices()), parallel.free_memory(), of_host=True)
    division = divide([method], [federation], CLASSES, lent, state=state, data=data)
    on_disk, stream = division.state.where == "disk", division.data.where == "stream"
    host = Host(on_disk=on_disk, stream=stream) if division.on_host else None
    strategy = parallel.choose(
        "auto",
        cohort=plan.cohort,
        in_turn=False,
        equal_steps=True,
        client_bytes=lambda: client_bytes(model_of(task), plan),
        **division.divided,
    )
    stages = (Stage("train", method, plan.rounds),)
    return Simulation([Seed(0, federation, federation)], CLASSES, stages, plan, strategy, host=host)


def make_file(file: Path, count: int, size: int) -> None:
    """Write count x size random bytes, unless the file has at least this size already."""
    if file.exists() and file.stat().st_size >= count * size:
        return
    block = np.random.default_rng(0).bytes(1 << 26)
    with file.open("wb") as out:
        for start in range(0, count * size, len(block)):
            out.write(block[: count * size - start])
        os.fsync(out.fileno())


def fill(store: HostState) -> None:
    """Give each client a nonzero private state, as after many rounds."""
    for ids in store.pieces():
        store.write(ids, jax.tree.map(lambda a: a + a.dtype.type(1e-6), store.read(ids)))


def drop(file: Path) -> None:
    """Drop a file from the system's cache."""
    with file.open("rb") as content:
        os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(simulation: Simulation, args) -> dict:
    """Time --rounds rounds after as many rounds of warm-up, then evaluate; returns the figures."""
    began = time.perf_counter()
    engine = Engine(simulation, folder=args.folder)
    if getattr(args, "full", False):
        fill(engine.kept()[0])
    engine.compile()
    ready = time.perf_counter() - began
    device, seconds = 0, 0.0
    for goal in (args.rounds, 2 * args.rounds):
        began = time.perf_counter()
        while engine.played < goal:
            engine.play(goal - engine.played)
            device = max(device, sum(a.nbytes for a in jax.live_arrays()))
        seconds = time.perf_counter() - began
    peak = peak_memory()
    engine.evaluate()
    examples = engine.session.totals[0] / (2 * args.rounds)
    memory = psutil.Process().memory_full_info()
    return {
        "strategy": simulation.strategy.name,
        "seconds_until_ready": round(ready, 2),
        "ms_per_round": round(1e3 * seconds / args.rounds, 3),
        "examples_per_second": round(examples * args.rounds / seconds),
        "peak_bytes": peak,
        "peak_bytes_after_evaluation": peak_memory(),
        "anonymous_bytes": memory.rss - memory.shared,
        "device_bytes": device,
    }


if __name__ == "__main__":
    main()
