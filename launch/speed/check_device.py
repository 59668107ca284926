"""Checks the device that jax finds: one JSON line.

    python launch/speed/check_device.py [--facts]

A product of matrices is compared with NumPy's in 64 bits, and one round of the quickstart with the
same round on a CPU (in a process of its own). `difference` is that of the two train losses,
relative to the CPU's. With --facts the line only says what the device is.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from fedjax_lab import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import jax
import jax.extend
import jax.numpy as jnp
import jaxlib
import numpy as np

import fedjax_lab
from fedjax_lab.config_files import load_config

QUICKSTART = Path(__file__).parents[2] / "configs/quickstart.py"
SIZE = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--facts", action="store_true", help="say what the device is")
    only.add_argument("--round", action="store_true", help="play the round of the comparison")
    args = parser.parse_args()
    line = facts() if args.facts else play_round() if args.round else check()
    print(json.dumps(line))


def facts() -> dict:
    """What the device is, and which software drives it."""
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
    """One round of the quickstart on whatever device there is."""
    config = load_config(str(QUICKSTART))
    config["run"] = {"rounds": 1, "eval_every": 1}
    (row,) = fedjax_lab.run(config, quiet=True).metrics
    return {"train_loss": row["train_loss"], "accuracy": row["accuracy"]["mean"]}


def check() -> dict:
    """The device against a CPU."""
    here, there = play_round(), play_round_on_cpu()
    return {
        "device": jax.devices()[0].device_kind,
        "product_error": product_error(),
        "train_loss": here["train_loss"],
        "train_loss_on_cpu": there["train_loss"],
        "accuracy": here["accuracy"],
        "accuracy_on_cpu": there["accuracy"],
        "difference": abs(here["train_loss"] / there["train_loss"] - 1),
    }


def play_round_on_cpu() -> dict:
    """`play_round` in a process that sees no other device."""
    command = [sys.executable, __file__, "--round"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(said.stdout.splitlines()[-1])


def product_error() -> float:
    """The largest error of a float32 product of matrices, relative to its largest element."""
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE))
    exact = a @ b
    product = jnp.dot(jnp.float32(a), jnp.float32(b), precision="highest")
    return float(np.abs(np.asarray(product) - exact).max() / np.abs(exact).max())


if __name__ == "__main__":
    main()
