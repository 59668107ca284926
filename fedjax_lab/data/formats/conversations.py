"""Conversations as rows of token ids, with the tokens of the responses as labels.

A template turns a conversation into text. A response is what a model would write, with the token to
which it stops; `chat_templates` has its borders in a tokenizer's own template.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import IGNORED
from fedjax_lab.data.formats import chat_templates, tokenizer_files
from fedjax_lab.data.formats.chat_templates import Pieces
from fedjax_lab.data.formats.tokenizer_files import ModelTokenizer
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import OneOf, Within

# The words of Alpaca's two prompts: PROMPT_DICT in train.py of
# https://github.com/tatsu-lab/stanford_alpaca (15b51ae).
ALPACA = "Below is an instruction that describes a task"
ALPACA_INPUT = ", paired with an input that provides further context"
ALPACA_TASK = ". Write a response that appropriately completes the request."
# The words of Vicuna 1.1, docs/vicuna_weights_version.md of https://github.com/lm-sys/FastChat.
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives"
    " helpful, detailed, and polite answers to the user's questions."
)


class Message(NamedTuple):
    """What one side says."""

    role: str  # system, user or assistant
    content: str
    input: str = ""  # what the instruction in `content` is for


class Form(NamedTuple):
    """How conversations become rows, common to all sources of conversations."""

    tokenizer: str
    template: str
    train_on: str
    join_input: bool
    length: int
    vocabulary: int
    packing: bool = False  # several records in a row: see `packing`


class Rows(NamedTuple):
    """The rows of token ids of conversations."""

    x: np.ndarray  # [R, T] int32, padded at the end
    y: np.ndarray  # [R, T] int32, the token after each one if it is to be predicted, else -1
    kept: np.ndarray  # [number of conversations] bool; the others have no response in a row
    classes: tuple[str, ...]  # the name of each id
    sizes: np.ndarray | None  # [K] int32, bytes of each id; None: unknown
    remarks: tuple[str, ...]


def rows(conversations: Sequence[Sequence[Message]], form: Form, where: str) -> Rows:
    """The rows of conversations. Raises BadInput if none has a response, or a setting is wrong.

    where: the data set, for messages.
    """
    tokenizer = tokenizer_files.read(form.tokenizer, (tokenizer_files.BYTES,))
    classes, sizes = _classes(tokenizer, form.vocabulary)
    render, made, longer = renderer(form, tokenizer), [], 0
    for messages in conversations:
        ids, counted = tokens(render(messages), tokenizer)
        longer += len(ids) > form.length
        made.append((ids[: form.length], counted[: form.length]))
    kept = np.array([counted[1:].any() for _, counted in made], bool)
    if not kept.any():
        raise BadInput(
            f"{where}: none of {len(made)} records has a response within {form.length} tokens:"
            " raise config.data.length, or name other fields with config.data.fields"
        )
    chosen = [pair for pair, is_kept in zip(made, kept, strict=True) if is_kept]
    x, y = _arrays(chosen, tokenizer.pad, form.train_on)
    return Rows(x, y, kept, classes, sizes, _remarks(kept, longer, chosen, y))


def _classes(tokenizer, vocabulary):
    """The names and the bytes of all ids; `vocabulary` ids, if that is not 0."""
    size = len(tokenizer.tokens)
    if vocabulary and vocabulary < size:
        raise BadInput(
            f"config.data.vocabulary={vocabulary} is below the {size} tokens of the tokenizer,"
            f" whose ids would be beyond the vocabulary; leave it at 0, or set it to {size} or more"
        )
    more = max(vocabulary - size, 0)
    names = (*tokenizer.tokens, *(f"<{id}>" for id in range(size, size + more)))
    if tokenizer.sizes is None:
        return names, None
    return names, np.array([*tokenizer.sizes, *[0] * more], np.int32)


def tokens(pieces: Pieces, tokenizer: ModelTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The token ids of a text, and which of them are of responses: [T] int32, [T] bool.

    A token that has parts of both belongs to the response.
    """
    ids, last = tokenizer.encode("".join(text for text, _ in pieces))
    ends = np.array(last, int)
    starts = np.minimum(np.append(0, ends)[:-1], ends - 1).clip(0)  # tokens may share a character
    lengths, is_response = zip(*((len(text), counted) for text, counted in pieces), strict=True)
    before = np.append(0, np.cumsum(np.repeat(is_response, lengths)))  # characters of responses
    return np.array(ids, np.int32), before[ends] > before[starts]


def _arrays(chosen, pad, train_on):
    """The ids x [R, T] and labels y [R, T] of rows of ids, with those that are of responses."""
    length = max(len(ids) for ids, _ in chosen)
    safe.check_fits(8 * len(chosen) * length, "the token ids", "lower --config.data.length")
    x = np.full((len(chosen), length), pad, np.int32)
    y = np.full((len(chosen), length), IGNORED, np.int32)
    for row, labels, (ids, counted) in zip(x, y, chosen, strict=True):
        row[: len(ids)] = ids
        wanted = counted[1:] | (train_on == "all")
        labels[: len(ids) - 1] = np.where(wanted, ids[1:], IGNORED)
    return x, y


def _remarks(kept, longer, chosen, y):
    """What a user should know about the rows."""
    lengths = np.array([len(ids) for ids, _ in chosen])
    counted = (y != IGNORED).sum(1)
    lines = [
        f"tokens: {lengths.mean():.1f} a record (the longest has {lengths.max()}), of which"
        f" {counted.mean():.1f} are predicted"
    ]
    if longer:
        lines.append(f"{longer} of {len(kept)} records are longer than config.data.length: cut")
    if not kept.all():
        lines.append(f"{(~kept).sum()} of {len(kept)} records are left out: they have no response")
    return tuple(lines)


# Templates.


def renderer(form: Form, tokenizer: ModelTokenizer) -> Callable[[Sequence[Message]], Pieces]:
    """The function that turns a conversation into text. Raises BadInput if it lacks anything."""
    if not tokenizer.eos:
        raise BadInput(
            f"the tokenizer {form.tokenizer} names no end of text: put the model's"
            f" {tokenizer_files.CONFIG}, which has eos_token, beside it"
        )
    make = TEMPLATES[form.template](form, tokenizer)

    def render(messages):
        if not any(each.content.strip() for each in messages if each.role == "assistant"):
            return [("", False)]  # no response
        return make(messages)

    return render


def _joined(message, form):
    """The text of a message with its input."""
    between = " " if form.join_input else "\n\n"
    return between.join(filter(None, (message.content, message.input)))


def _alpaca(form, tokenizer):
    start = tokenizer.bos * tokenizer.starts

    def make(messages):
        roles = [each.role for each in messages]
        if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
            raise BadInput(
                "config.data.template=alpaca takes one instruction and one response a record; set"
                " it to chat or vicuna for conversations"
            )
        *system, user, assistant = messages
        has_input = bool(user.input) and not form.join_input
        first = system[0].content if system else ALPACA + ALPACA_INPUT * has_input + ALPACA_TASK
        asked = user.content if has_input else _joined(user, form)
        prompt = f"{start}{first}\n\n### Instruction:\n{asked}\n\n"
        prompt += f"### Input:\n{user.input}\n\n" * has_input + "### Response:"
        return [(prompt, False), (assistant.content + tokenizer.eos, True)]

    return make


def _vicuna(form, tokenizer):
    def make(messages):
        has_system = messages[0].role == "system"
        pieces = [(tokenizer.bos * tokenizer.starts, False)]
        pieces.append((f"{messages[0].content if has_system else VICUNA} ", False))
        for message in messages[has_system:]:
            if message.role == "assistant":
                pieces += [("ASSISTANT: ", False), (message.content + tokenizer.eos, True)]
            else:
                pieces.append((f"USER: {_joined(message, form)} ", False))
        return pieces

    return make


def _chat(form, tokenizer):
    """The tokenizer's own template."""
    if not tokenizer.template:
        raise BadInput(
            f"the tokenizer {form.tokenizer} has no chat template: put the model's"
            f" {tokenizer_files.CONFIG} or {tokenizer_files.TEMPLATE} beside it, or set"
            " --config.data.template=alpaca"
        )
    render = chat_templates.renderer(
        tokenizer.template, bos_token=tokenizer.bos, eos_token=tokenizer.eos, pad_token=""
    )

    def make(messages):
        given = [{"role": each.role, "content": _joined(each, form)} for each in messages]
        return chat_templates.pieces(render, tokenizer.special, tokenizer.eos, given)

    return make


TEMPLATES: dict[str, Callable] = {"chat": _chat, "alpaca": _alpaca, "vicuna": _vicuna}
Template = Annotated[str, OneOf(TEMPLATES)]
TrainOn = Literal["response", "all"]
Length = Annotated[int, Within(2)]


def kept_only(values: Iterable, kept: np.ndarray) -> list:
    """The values of the conversations that are kept."""
    return [value for value, is_kept in zip(values, kept, strict=True) if is_kept]
