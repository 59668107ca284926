"""Checks the device that JAX finds, and prints one JSON line.

    python launch/speed/check_device.py [--facts | --methods]

A float32 matrix product is compared with NumPy's 64-bit product, and one round of the quickstart
with the same round on a CPU in another process. `difference` is the difference of the two training
losses relative to the CPU's. With --facts the line only describes the device. With --methods, two
rounds of every method of one stage on a toy are compared with a CPU's, with products of full
precision; `difference` is the largest one, relative to the largest number of the same array.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import jax
import jax.extend
import jax.numpy as jnp
import jaxlib
import numpy as np

import fedjax_lab
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.registry import NAMED
from fedjax_lab.testing.toy import toy_method
from fedjax_lab.testing.trial import Trial
from fedjax_lab.types import Method

QUICKSTART = Path(__file__).parents[2] / "configs/quickstart.py"
SIZE = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--facts", action="store_true", help="only describe the device")
    only.add_argument("--methods", action="store_true", help="compare two rounds of all methods")
    only.add_argument("--states", metavar="FILE", help="only save the states to be compared")
    only.add_argument("--round", action="store_true", help="only run the round to be compared")
    args = parser.parse_args()
    if args.states:
        np.savez(args.states, **states())
        return
    line = facts() if args.facts else play_round() if args.round else None
    print(json.dumps(line or (check_methods() if args.methods else check())))


def facts() -> dict:
    """The kind, number and memory of the devices, and the versions of their software."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "devices": len(jax.devices()),
        "memory_gib": memory and round(memory / 2**30, 1),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "driver": " ".join(jax.extend.backend.get_backend().platform_version.split()),
    }


def play_round() -> dict:
    """Run one round of the quickstart on JAX's default device; returns its loss and accuracy."""
    config = load_config(str(QUICKSTART))
    config["run"] = {"rounds": 1, "eval_every": 1}
    (row,) = fedjax_lab.run(config, quiet=True).metrics
    return {"train_loss": row["train_loss"], "accuracy": row["accuracy"]["mean"]}


def check() -> dict:
    """Compare the device with a CPU; returns the values of the JSON line."""
    on_device, on_cpu = play_round(), play_round_on_cpu()
    return {
        "device": jax.devices()[0].device_kind,
        "product_error": product_error(),
        "train_loss": on_device["train_loss"],
        "train_loss_on_cpu": on_cpu["train_loss"],
        "accuracy": on_device["accuracy"],
        "accuracy_on_cpu": on_cpu["accuracy"],
        "difference": abs(on_device["train_loss"] / on_cpu["train_loss"] - 1),
    }


def play_round_on_cpu() -> dict:
    """Call `play_round` in a process that uses the CPU alone."""
    return json.loads(on_cpu("--round").splitlines()[-1])


def on_cpu(*arguments: str) -> str:
    """What this script prints with these arguments in a process that uses the CPU alone."""
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def check_methods() -> dict:
    """Compare two rounds of all methods with a CPU's; returns the values of the JSON line."""
    with tempfile.TemporaryDirectory() as scratch:
        on_cpu("--states", f"{scratch}/cpu.npz")
        expected = dict(np.load(f"{scratch}/cpu.npz"))
    differences = {
        name: float(np.abs(array - expected[name]).max() / max(1e-6, np.abs(expected[name]).max()))
        for name, array in states().items()
    }
    worst = max(differences, key=differences.get)
    methods = {name.split("/")[0] for name in differences}
    return {"methods": len(methods), "difference": differences[worst], "where": worst}


def states() -> dict[str, np.ndarray]:
    """The arrays of real numbers in the states after two rounds, by METHOD/NUMBER."""
    jax.config.update("jax_default_matmul_precision", "highest")
    arrays = {}
    for name in NAMED["method"]:
        made = toy_method(name)
        if isinstance(made, Method):
            trial = Trial(made)
            leaves = jax.tree.leaves(trial.play(0, 2, trial.start())[0])
            real = [np.asarray(a) for a in leaves if jnp.issubdtype(a.dtype, jnp.floating)]
            arrays |= {f"{name}/{i}": a for i, a in enumerate(real) if a.size}
    return arrays


def product_error() -> float:
    """The largest error of a float32 matrix product, relative to the largest element."""
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE))
    exact = a @ b
    product = jnp.dot(jnp.float32(a), jnp.float32(b), precision="highest")
    return float(np.abs(np.asarray(product) - exact).max() / np.abs(exact).max())


if __name__ == "__main__":
    main()
