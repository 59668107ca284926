"""The models that a method's clients, and new clients, predict with."""

import jax
import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import needs
from fedjax_lab.transforms import private_state
from fedjax_lab.types import Client, Method, PyTree, State, Task, Weights


def global_model(name: str, method: Method, state: State) -> Weights:
    """The model that a new client would receive from the server.

    Other content of the server's message, such as a control variate, is ignored.

    Args:
      name: the method's name, for error messages.
      method: the method of the current stage.
      state: the state of one seed.

    Raises:
      BadInput: the method has no global model or several.
    """
    needs.check(method, "global_model", what=f"method {name}: ")
    assert method.newcomer is not None  # checked
    message, private = method.newcomer(state)
    if (stated := _stated(name, method, message, private)) is not None:
        return stated
    parts = jax.tree.leaves((message, private), is_leaf=lambda a: isinstance(a, Weights))
    models = [part for part in parts if isinstance(part, Weights)]
    if models and all(_covers(models[0], other) for other in models):
        return models[0]  # the message; the others are the initial values of a client's own models
    return _joined(name, (message, private_state.plain(private)))


def model_of(name: str, method: Method, task: Task, message: PyTree, client: Client) -> Weights:
    """The model with which a client predicts: its message, its private state, or both joined.

    If both are complete models, the result is the one that `predict` uses.

    Args:
      name: the method's name, for error messages.
      method: the method of the current stage.
      task: the task, for the shape of an input.
      message: the message that the server sends to the client.
      client: the client, with its private state.

    Raises:
      BadInput: the client does not have exactly one model.
    """
    private = private_state.plain(client.private)
    if (stated := _stated(name, method, message, private)) is not None:
        return stated
    parts = message, private
    if not all(isinstance(part, Weights) for part in parts) or not _covers(message, private):
        return _joined(name, parts)
    x = jnp.zeros((1, *task.input_shape))

    def with_message(message):
        return method.predict(message, client, x)

    def with_private(part):
        private = private_state.with_plain(client.private, part)
        return method.predict(message, client._replace(private=private), x)

    each = zip((with_message, with_private), parts, strict=True)
    read = [part for function, part in each if _reads(function, part)]
    if len(read) != 1:
        raise no_model(name)
    return read[0]


def _stated(name, method, message, private):
    """The model that the method itself states, or None. BadInput if it states that it has none."""
    if method.extra.model is None:
        return None
    try:
        return method.extra.model(message, private_state.plain(private))
    except BadInput as error:
        raise BadInput(f"method {name}: {error}") from error


def _joined(name, parts):
    """The model that these parts form together; parts without arrays are ignored.

    Raises BadInput if they do not form exactly one model.
    """
    parts = [part for part in parts if jax.tree.leaves(part)]
    if not parts or not all(isinstance(part, Weights) for part in parts):
        raise no_model(name)
    return parts[0] if len(parts) == 1 else tree.join(*parts)


def _covers(a, b):
    """Whether the first tree has every leaf that the second one has."""
    return set(tree.names(b)) <= set(tree.names(a))


def _reads(function, argument):
    """Whether a function uses any part of its argument."""
    jaxpr = jax.make_jaxpr(function)(argument).jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    return any(id(variable) in read for variable in jaxpr.invars)


def no_model(name: str) -> BadInput:
    """The error for a method whose clients do not predict with exactly one model."""
    return BadInput(f"the clients of {name} do not have exactly one model each")
