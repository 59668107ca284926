"""Multiple choice by the log-likelihood of a language model, as lm-evaluation-harness defines it.

The score of a choice c is the sum of log P(token | context, earlier tokens of c) over the tokens of
c, which are those of context + c without the first len(tokens(context)). Spaces at the end of a
context belong to the choices. `acc` takes the choice with the largest score, and `acc_norm` that
with the largest score divided by the choice's number of bytes (there, of characters).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.data.dataset import IGNORED
from fedjax_lab.data.formats import tokenizer_files
from fedjax_lab.data.formats.tokenizer_files import ModelTokenizer
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.types import Array


class Question(NamedTuple):
    """A question with one right answer."""

    context: str
    choices: tuple[str, ...]
    answer: int  # the number of the right choice, from 0


class Answers(NamedTuple):
    """The scores of a model."""

    acc: float  # percent
    acc_norm: float  # percent
    scores: tuple[tuple[float, ...], ...]  # log-likelihood of each choice of each question


def log_likelihood(logits: Array, y: Array) -> Array:
    """The sum of the log-probabilities of labels y [B, T] that count, for logits [B, T, K]: [B]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(y, 0))
    return -jnp.sum(jnp.where(y == IGNORED, 0, losses), 1)


def answer(
    questions: Sequence[Question | tuple],
    tokenizer: str,
    length: int,
    log_likelihoods: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Answers:
    """Answers multiple-choice questions.

    Args:
      questions: `Question`s, or tuples (context, choices, number of the right one).
      tokenizer: as config.data.tokenizer.
      length: the number of tokens of a row, T.
      log_likelihoods: (x [N, T], y [N, T]) -> sums of the log-probabilities of y [N], where y is -1
        for tokens that do not count.

    Raises:
      BadInput: a question has no choice or no right one, or is longer than T tokens.
    """
    asked = [_checked(number, question) for number, question in enumerate(questions)]
    if not asked:
        raise BadInput("there are no questions")
    reader = tokenizer_files.read(tokenizer, (tokenizer_files.BYTES,))
    pairs = [_pair(question, choice) for question in asked for choice in question.choices]
    rows = [_row(reader, *pair, length) for pair in pairs]
    scores = np.asarray(log_likelihoods(*(np.stack(part) for part in zip(*rows, strict=True))))
    ends = np.cumsum([len(question.choices) for question in asked])
    by_question = np.split(scores.astype(float), ends[:-1])
    sizes = [[len(choice.encode()) for choice in question.choices] for question in asked]
    right = [question.answer for question in asked]
    best = [np.argmax(each) for each in by_question]
    best_norm = [np.argmax(each / n) for each, n in zip(by_question, sizes, strict=True)]
    acc, acc_norm = (100 * float(np.mean(np.equal(chosen, right))) for chosen in (best, best_norm))
    return Answers(acc, acc_norm, tuple(tuple(each.tolist()) for each in by_question))


def _checked(number, question):
    if not isinstance(question, tuple) or len(question) != 3 or isinstance(question[1], str):
        raise BadInput(
            f"question {number} must be (context, choices, number of the right one), not"
            f" {quoted(question)}"
        )
    context, choices, right = question
    if not isinstance(context, str) or not all(isinstance(c, str) and c for c in choices):
        raise BadInput(f"question {number}: the context and the choices must be text, not empty")
    if right not in range(len(choices)):
        raise BadInput(
            f"question {number} has {len(choices)} choices, so that its answer cannot be"
            f" {quoted(right)}; the first choice is 0"
        )
    return Question(context, tuple(choices), right)


def _pair(question: Question, choice: str) -> tuple[str, str]:
    """The context and a choice, to which the spaces at the end of the context move."""
    context = question.context.rstrip()
    return context, question.context[len(context) :] + choice


def _row(tokenizer: ModelTokenizer, context: str, choice: str, length: int):
    """The ids x [T] of a context and a choice, and labels y [T] of the tokens of the choice."""
    ids = tokenizer.encode(context + choice)[0]
    first = max(len(tokenizer.encode(context)[0]), 1)  # nothing predicts the first token
    if len(ids) <= first:
        raise BadInput(
            f"the choice {quoted(choice)} after {quoted(context)} has no token of its own that"
            " could be predicted; give a context, or a longer choice"
        )
    if len(ids) > length:
        raise BadInput(
            f"the question {quoted(context)} with {quoted(choice)} has {len(ids)} tokens, more than"
            f" the {length} of the run's rows (config.data.length)"
        )
    x = np.full(length, tokenizer.pad, np.int32)
    y = np.full(length, IGNORED, np.int32)
    x[: len(ids)] = ids
    y[first - 1 : len(ids) - 1] = ids[first:]
    return x, y
