"""How many clients a device trains at a time, from the memory that each of them works on."""

import math

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from fedjax_lab import tree
from fedjax_lab.types import Plan, Task

MIB = 2**20
ALL_AT_ONCE = {"cpu": 12 * MIB, "gpu": 16 * 2**10 * MIB, "tpu": 160 * MIB}
CHUNK = {"cpu": 2 * MIB, "gpu": 16 * 2**10 * MIB, "tpu": 160 * MIB}
FEWEST = {"cpu": 1, "gpu": 8, "tpu": 8}  # in a chunk of unequal clients, where memory allows it


def width(
    platform: str, line: int, client_bytes: int, equal_steps: bool = True, memory: int = 0
) -> int:
    """How many clients a device trains at a time; what `auto` and `chunked` do without a number.

    platform: "cpu", "gpu" or "tpu".
    line: the clients that one device trains in a round.
    client_bytes: what a step of one client works on.
    equal_steps: whether all clients take as many steps.
    memory: bytes of the device, 0 where that is not known. A quarter of it is never exceeded.

    All at once where the whole line fits, since a chunk costs a turn of a loop and a copy of what
    its clients upload; else as many as fit the smaller limit, the next divisor of the line below it
    where there is one, so that no copies fill the last chunk. Of unequal clients about the square
    root of the line, the balance between turns of the loop and steps that only the longest needs.

    - CPU, measured on two cores of an AMD EPYC (1 MiB of second-level cache each, 32 MiB of third
      in all), MLP 64-64-10, 48 KiB a client: lines up to 160 are fastest all at once (chunks take
      1.1 to 1.7 times as long); of 500, 1,600 and 5,000 chunks of 20 to 50 are, and all at once
      takes 1.2 to 1.8 times as long. MLP 784-256-10, 1.6 MiB: a line of 5 all at once, chunks of 1
      to 5 in a line of 50.
    - TPU, by its compiler's estimate for a v5e: pfl_cnn, 50 clients of 19 MiB: 48 ms a round one by
      one, 43 by 4, 42 by 8, 61 all at once, which also takes three times the memory.
    - GPU, no device has decided: its compiler makes 274 kernels a round of that when all run at
      once, and again as many for each chunk. A launch costs more than a cache saves, so only memory
      bounds the width: 16 GiB are a fifth of an H100.
    """
    at_most = memory // 4 or math.inf
    if equal_steps and line * client_bytes <= min(ALL_AT_ONCE[platform], at_most):
        return line
    fit = int(min(CHUNK[platform], at_most) // client_bytes)
    if not equal_steps:
        fit = min(fit, max(FEWEST[platform], math.isqrt(line)))
    return _even(line, min(max(fit, 1), line))


def _even(line, limit):
    """The largest divisor of the line from limit / 2 to limit, the limit if there is none."""
    divisors = [d for d in range(-(-limit // 2), limit + 1) if line % d == 0]
    return max(divisors, default=limit)


def client_bytes(task: Task, plan: Plan) -> int:
    """Bytes that a step of one client works on. From shapes alone: nothing is compiled.

    The weights, their gradient, the optimizer's state, a batch of inputs, and what the backward
    pass keeps of the forward pass. Of the plain model: what a method adds is not counted.
    """
    key = jax.random.key(0)
    weights = jax.eval_shape(task.init, key)
    x = jax.ShapeDtypeStruct((plan.batch_size, *task.input_shape), jnp.float32)

    def backward(weights, x):
        def logits(params):
            return task.apply(weights._replace(params=params), x, key).logits

        return jax.vjp(logits, weights.params)[1]

    program = jax.make_jaxpr(backward)(weights, x).jaxpr
    kept = {a for a in program.outvars if isinstance(a, Var)} - set(program.invars)
    moments = jax.eval_shape(plan.optimizer.init, weights.params)
    return tree.num_bytes((weights, weights.params, moments, x, [a.aval for a in kept]))
