"""Texts that a language model of a run writes, token by token.

The model keeps the keys and values of earlier tokens, so that a further token costs one position,
if it can (`models.caching`); otherwise each token costs a whole row.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats import conversations, tokenizer_files
from fedjax_lab.data.formats.conversations import Form, Message
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.models import caching
from fedjax_lab.types import Array, PyTree

STEP = 32  # lengths of prompts are rounded up to it, so that few programs are compiled
MOST = 10_000  # tokens of an answer, whose keys and values are kept
FIRST, LAST = "<bos>", "<eos>"  # of a text, in data of characters


class Speller(NamedTuple):
    """How the texts of a run become token ids, and ids texts."""

    prompt: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    stops: frozenset[int]  # the ids that end a text


def speller(data: Any, dataset: Dataset, raw: bool) -> Speller:
    """The speller of a run's data. Raises BadInput if their tokens are neither text nor characters.

    data: config.data.
    raw: whether a prompt is the beginning of a text, instead of the first turn of a conversation.
    """
    if "tokenizer" in data:
        return _tokenizer_speller(data, raw)
    names = [str(name) for name in dataset.classes]
    characters = {name: id for id, name in enumerate(names) if len(name) == 1}
    if FIRST not in names or not characters:
        raise BadInput(f"the tokens of data {data.name} are neither a tokenizer's nor characters")

    def prompt(text):
        if unknown := sorted({*text} - {*characters}):
            raise BadInput(
                f"the prompt has characters that the data lack: {quoted(''.join(unknown))}"
            )
        return [names.index(FIRST), *(characters[each] for each in text)]

    def decode(ids):
        return "".join(names[id] for id in ids if len(names[id]) == 1)

    return Speller(prompt, decode, frozenset({names.index(LAST)} if LAST in names else ()))


def _tokenizer_speller(data, raw):
    reader = tokenizer_files.read(data.tokenizer, (tokenizer_files.BYTES,))
    join = data.get("join_input", False)
    form = Form(data.tokenizer, data.get("template", "chat"), "response", join, 2, 0)

    def prompt(text):
        start = reader.bos * reader.starts + text
        if not raw:
            turns = Message("user", text), Message("assistant", "x")
            pieces = conversations.renderer(form, reader)(turns)
            replies = [number for number, (_, is_reply) in enumerate(pieces) if is_reply]
            start = "".join(each for each, _ in pieces[: replies[0]])
        return reader.encode(start)[0]

    stops = {reader.tokens.index(name) for name in reader.special if name in reader.tokens}
    return Speller(prompt, reader.decode, frozenset(stops))


def write(
    logits_of: Callable[[PyTree, Array], Array],
    weights: PyTree,
    prompt: Sequence[int],
    count: int,
    row: int,
    stops: frozenset[int],
    temperature: float = 0.0,
    key: Array | None = None,
    cached: bool = True,
) -> list[int]:
    """The ids that a model appends to those of a prompt, without the one at which it stops.

    Args:
      logits_of: (weights, ids [1, S]) -> logits [1, S, K], a causal model.
      weights: what the compiled functions get as an argument.
      prompt: the ids of the prompt.
      count: the largest number of new ids.
      row: the number of tokens of a row of the run's data, at most which a model without a cache
        reads.
      stops: ids that end a text.
      temperature: of the softmax from which ids are drawn; 0: the most likely id.
      key: of the random numbers.
      cached: whether keys and values are kept, if the model can.

    Raises BadInput if the prompt is empty, or too long for a model without a cache.
    """
    if not prompt:
        raise BadInput("the prompt is empty")
    size = -(-len(prompt) // STEP) * STEP
    step = _with_cache(logits_of, weights, size + count, row) if cached else None
    step = step or _without_cache(logits_of, weights, row)
    made: list[int] = []
    ids, cache = [*prompt], None
    for number in range(count):
        logits, cache = step(ids, cache)
        made.append(_chosen(logits, temperature, None if key is None else (key, number)))
        if made[-1] in stops:
            return made[:-1]
        ids.append(made[-1])
    return made


def _chosen(logits, temperature, stream):
    if not temperature or stream is None:
        return int(np.argmax(logits))
    return int(jax.random.categorical(jax.random.fold_in(*stream), logits / temperature))


def _with_cache(logits_of, weights, length, row):
    """(ids so far, cache) -> (logits of the next id [K], cache); None if the model keeps none."""

    def advance(weights, ids, cache):
        with caching.continued(cache, length) as made:
            return logits_of(weights, ids)[0], made

    probe = jnp.zeros((1, min(length, row)))
    traced, (_, caches) = jax.make_jaxpr(advance, return_shape=True)(weights, probe, None)
    # A cache inside of a vmap over models cannot leave it; it is traced as a constant.
    if len(caches) != 1 or any(isinstance(each, jax.core.Tracer) for each in traced.consts):
        return None
    compiled = jax.jit(advance)

    def step(ids, cache):
        new = ids if cache is None else ids[-1:]
        room = -(-len(new) // STEP) * STEP if cache is None else 1
        padded = jnp.zeros((1, room)).at[0, : len(new)].set(jnp.array(new, jnp.float32))
        logits, (cache,) = compiled(weights, padded, cache)
        return logits[len(new) - 1], cache._replace(length=jnp.int32(len(ids)))

    return step


def _without_cache(logits_of, weights, row):
    compiled = jax.jit(lambda weights, ids: logits_of(weights, ids)[0])

    def step(ids, cache):
        if len(ids) > row:
            raise BadInput(
                f"the prompt and its answer have more than the {row} tokens of a row, which is all"
                " that this model reads; lower --tokens, or shorten the prompt"
            )
        padded = jnp.zeros((1, row)).at[0, : len(ids)].set(jnp.array(ids, jnp.float32))
        return compiled(weights, padded)[len(ids) - 1], None

    return step


def check(objective: str, temperature: float, count: int) -> None:
    """Raises BadInput unless the run's model writes texts, and if a setting is invalid."""
    if objective != "tokens":
        raise BadInput(
            f"the run has no language model, but the task {objective}; texts need a run with"
            " config.task.name=tokens"
        )
    if not 0 <= temperature < float("inf"):
        raise BadInput(f"temperature must be a number of at least 0, got {quoted(temperature)}")
    if not 1 <= count <= MOST:
        raise BadInput(f"tokens must be from 1 to {MOST:,}, got {quoted(count)}")
