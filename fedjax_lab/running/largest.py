"""Names the largest array of a run that does not fit in memory, and the setting behind it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import jax
import numpy as np

from fedjax_lab import tree
from fedjax_lab.engine import sizes
from fedjax_lab.errors import message_of
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.running.storage.checkpoint import is_no_room
from fedjax_lab.simulation import contract

SECTIONS = ("method", "model", "adapter", "partition", "data")  # whose settings determine shapes
MULTIPLE = 8  # the longest axis may be this multiple of a setting, such as of a model's width


@contextlib.contextmanager
def named(experiment: Experiment) -> Iterator[None]:
    """A context in which an error about too little memory also names the largest array."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_no_room(error):
            raise
        words = describe(experiment)
        line = next(iter(message_of(error).splitlines()), "")
        raise MemoryError("; ".join(filter(None, (line, words)))) from error


def describe(experiment: Experiment) -> str:
    """The largest array of a run's first state and examples, and the setting behind its shape."""
    simulation = experiment.simulation
    x = experiment.dataset.x
    arrays = {"examples": jax.ShapeDtypeStruct(x.shape, x.dtype)}
    method, clients = simulation.stages[0].method, len(simulation.seeds[0].training.train)
    if method.init is not None:
        first = partial(contract.first_state, method, num_clients=clients)
        arrays |= tree.by_name(jax.eval_shape(first, jax.random.key(0)))
    name, shape, words = sizes.largest(arrays)
    longest = max(shape, default=0)
    if isinstance(x, np.ndarray) and x.dtype != np.uint8 and float(x.max()) + 1 == longest:
        return f"{words}: the examples have token ids up to {longest - 1}"
    sections = ("data",) if name == "examples" else SECTIONS
    setting = responsible(experiment.config, shape, sections)
    return f"{words}: lower {setting}" if setting else words


def responsible(config: Mapping, shape: tuple[int, ...], sections: Sequence[str] = SECTIONS) -> str:
    """The largest setting that the longest axis of a shape may follow from; "" if there is none.

    sections: those of the config that have such settings.
    """
    longest = max(shape, default=0)
    values = {
        f"config.{section}.{key}": value
        for section in sections
        for key, value in config[section].items()
        if type(value) is int and value <= longest <= MULTIPLE * value
    }
    key = max(values, key=lambda key: values[key], default="")
    return key and f"{key}={values[key]}"
