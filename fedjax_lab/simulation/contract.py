"""Checks methods before anything is compiled; an error names the requirement that is not met."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_lab.errors import BadInput, cut, quoted
from fedjax_lab.simulation import needs
from fedjax_lab.types import Array, Method, Objective, PyTree, Stage, State

TAKES = {  # the arguments of the functions of a method and of its exchanges
    "init": ("key", "num_clients"),
    "predict": ("message", "client", "x"),
    "newcomer": ("state",),
    "sample": ("key", "server", "population", "m"),
    "tune": ("message", "client", "work"),
    "join": ("server", "client", "work"),
    "scored": ("server", "id"),
    "record": ("state",),
    "send": ("server", "id"),
    "local": ("message", "client", "work"),
    "aggregate": ("server", "uploads", "cohort"),
    "updates": ("message", "id", "upload"),
}


def check_stages(stages: Any) -> None:
    """Raises BadInput unless these are stages whose functions take the arguments of a run."""
    if not isinstance(stages, tuple) or not all(isinstance(stage, Stage) for stage in stages):
        raise BadInput(f"the stages of a method must be a tuple of Stage, not {quoted(stages)}")
    for stage in stages:
        check_method(stage.method)
        if stage.method.validation:
            needs.check((stage,), "examples", "no_turns", what="a method with validation=True: ")


def check_method(method: Any) -> None:
    """Raises BadInput unless this is a method whose functions take the arguments of a run."""
    if not isinstance(method, Method):
        raise BadInput(f"the method must be a Method, not {quoted(method)}")
    if not method.round:
        raise BadInput("the round of a method must have at least one Exchange")
    parts: tuple[Any, ...] = (method, method.extra, *method.round)
    for part in parts:
        for field, function in part._asdict().items():
            if field in TAKES and function is not None:
                _check_call(field, function)


def _check_call(field, function):
    """Raises BadInput unless the function can be called with the arguments of that field."""
    if not callable(function):
        raise BadInput(f"`{field}` of a method must be a function, not {quoted(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C may have no signature
        return
    try:
        signature.bind(*TAKES[field])
    except TypeError as error:
        name = getattr(function, "__qualname__", field)
        raise BadInput(
            f"`{field}` of a method must take ({', '.join(TAKES[field])}), but {name} takes"
            f" {cut(str(signature), 80)}"
        ) from error


def first_state(method: Method, key: Array, num_clients: int) -> State:
    """Returns the result of `init`. Raises BadInput unless it has private state for all clients."""
    assert method.init is not None  # only a method whose stage has a `start` may lack it
    state = method.init(key, num_clients)
    if not isinstance(state, State):
        raise BadInput(f"`init` of a method must return a State, not {quoted(state)}")
    shapes = [jnp.shape(a) for a in jax.tree.leaves(state.private)]
    for shape in shapes:
        if shape[:1] != (num_clients,):
            raise BadInput(
                f"`init` of a method must return private state of {num_clients} clients: each array"
                f" [{num_clients}, ...], not {list(shape)}"
            )
    return state


def check_sample(drawn: Any) -> tuple[Array, Array]:
    """Returns the result of `sample`. Raises BadInput unless it is (ids, shares), arrays [M]."""
    if isinstance(drawn, tuple) and len(drawn) == 2:
        ids, shares = drawn
        are_whole = jnp.issubdtype(jnp.result_type(ids), jnp.integer)
        if are_whole and jnp.ndim(ids) == 1 and jnp.shape(ids) == jnp.shape(shares):
            return drawn
    raise BadInput(
        "the sampling of a method must return (ids, shares), integers [M] and numbers [M], not"
        f" {shown(drawn)}"
    )


SUM = 1e-3  # how far the sum of the shares of a cohort may be from 1


def is_cohort(ids: Array, shares: Array, num_clients: int) -> Array:
    """Whether these are clients and their shares in a mean, which sum to 1.

    Shares that are all 0 are those of a cohort without clients.
    """
    total = jnp.sum(shares)
    sums = (jnp.abs(total - 1) <= SUM) | jnp.all(shares == 0)
    return jnp.all((ids >= 0) & (ids < num_clients)) & jnp.all(shares >= 0) & sums


def check_cohort(name: str, ids: Array, shares: Array, num_clients: int) -> None:
    """Raises BadInput unless the arrays, with their values, are those of a cohort.

    name: of the sampling, for the message.
    """
    ids, shares = jax.device_get((ids, shares))
    if outside := [int(i) for i in ids if not 0 <= i < num_clients]:
        raise BadInput(
            f"{name} draws client {outside[0]}, but the clients are 0 .. {num_clients - 1}"
        )
    if not is_cohort(ids, shares, num_clients):
        wrong = shares[~(shares >= 0)]
        of = f"one of them is {wrong[0]:.6g}" if len(wrong) else f"they sum to {shares.sum():.6g}"
        raise BadInput(
            f"{name} must return shares of at least 0 that sum to 1, the weights of the clients in"
            f" the server's mean; {of}; divide them by their sum"
        )


def check_local(returned: Any, private: PyTree) -> tuple[PyTree, PyTree]:
    """Returns the result of `local`.

    Raises BadInput unless it is (upload, private), where `private` has the same structure and
    shapes as the client's private state before.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise BadInput(f"`local` of a method must return (upload, private), not {shown(returned)}")
    check_alike("`local` of a method must return (upload, private)", returned[1], private)
    return returned


def check_model(function: str, given: Any) -> tuple[PyTree, PyTree]:
    """Returns the result `given` of this function. Raises BadInput unless it is (message, private).

    function: its name, for the message.
    """
    if type(given) is not tuple or len(given) != 2:  # `Weights` is a NamedTuple of two fields
        raise BadInput(
            f"`{function}` of a method must return (message, private), not {shown(given)}"
        )
    return given


def check_alike(what: str, given: PyTree, expected: PyTree, of: str = "that `init` gave") -> None:
    """Raises BadInput unless two trees have the same structure and shapes.

    what: the beginning of the message. of: whose shapes the expected ones are.
    """
    import chex  # imported here, so that importing the package stays fast

    try:
        chex.assert_trees_all_equal_shapes(given, expected)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(
            f"{what} in the shapes {of}, {shown(expected)}, not {shown(given)}"
        ) from error


def check_logits(logits: Any, count: int, objective: Objective) -> None:
    """Raises BadInput unless the logits are [count, *outputs]; others could broadcast silently."""
    expected = count, *objective.outputs
    if getattr(logits, "shape", None) != expected:
        raise BadInput(
            f"`predict` of a method must return logits [B, *outputs], for {count} examples"
            f" {list(expected)}, not {shown(logits)}"
        )


def check_augmented(augmented: Any, x: Array) -> Array:
    """Returns the augmented examples. Raises BadInput unless they have the shape of x."""
    if getattr(augmented, "shape", None) != x.shape:
        raise BadInput(
            f"an augmentation must return examples of the same shape, {list(x.shape)}, not"
            f" {shown(augmented)}"
        )
    return augmented


def check_skewed(skewed: Any, x: Array) -> Array:
    """Returns the result of a feature skew. Raises BadInput unless it has the shape of x."""
    if getattr(skewed, "shape", None) != x.shape:
        raise BadInput(
            f"a feature skew must return an example of the same shape, {list(x.shape)}, not"
            f" {shown(skewed)}"
        )
    return skewed


def shown(tree: PyTree) -> str:
    """Formats a tree with its arrays replaced by their types and shapes, shortened."""
    if tree is None:
        return "None"
    return cut(str(jax.tree.map(_shown, tree)), 120)


def _shown(leaf):
    try:
        return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
    except (TypeError, ValueError):  # no array
        return quoted(leaf, 40)
