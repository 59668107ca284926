"""Chat templates of tokenizers: Jinja templates that turn a conversation into text.

The words of a response are not searched in the text, where they may occur elsewhere too. The
conversation is rendered a second time with marks around the words, two characters that occur
nowhere in it; without them, the text must be the same. A response begins where a model would begin:
after what the template prints for `add_generation_prompt`, if the text continues that; otherwise
with its words. It ends with the first special token that the template prints after the words, to
which the model stops. If the template prints none there, the end of text is appended.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedjax_lab.data.formats import tokenizer_files
from fedjax_lab.errors import BadInput, message_of, missing, quoted, reason_of

SECONDS = 5  # that a template may take for a conversation
LARGEST_PRODUCT = 10**7  # of numbers, and of repeated texts and lists
ANSWER = "</think>"  # the answer follows it: many templates print no reasoning of earlier turns
MARKS = range(0x100000, 0x10FFFE)  # code points for private use
VICUNA = "set --config.data.template=vicuna"

Messages = Sequence[dict[str, str]]  # each with a role and content
Pieces = list[tuple[str, bool]]  # the parts of a text, and whether each is a response
Render = Callable[..., str]  # (messages, whether a reply begins at the end) -> text


def renderer(template: str, **words: str) -> Render:
    """The function that renders conversations. Raises BadInput if the template is invalid.

    words: what the template may name besides the messages, such as bos_token.
    The environment is the one of transformers, but without the current date, so that the text is
    the same on every day.
    """
    compiled = _compiled(template)

    def render(messages, reply=False):
        try:
            return compiled.render(
                messages=messages, add_generation_prompt=reply, take_time=_clock(), **words
            )
        except Exception as error:  # a template may do anything
            reason = " ".join(message_of(error).split())[:200]
            raise BadInput(
                f"the chat template fails on {_conversation(messages)} ({reason}); leave it out, or"
                f" {VICUNA}"
            ) from error

    return render


def pieces(render: Render, special: Sequence[str], eos: str, messages: Messages) -> Pieces:
    """The pieces of a rendered conversation; what follows the last response is left out.

    special: the special tokens of the tokenizer; eos: the one at the end of a text.
    Raises BadInput if the template does not print each response in one piece.
    """
    text, made, place = render(messages), [], 0
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and message["content"].strip():
            words, closing = _words(render, messages, number, text)
            start = _start(render, messages[:number], text, words)
            if start < place:
                raise BadInput(_rewritten(messages))
            end, is_closed = _end(text, words.stop, closing, special)
            response = text[start:end] + ("" if is_closed else eos)
            made += [(text[place:start], False), (response, True)]
            place = end
    return made


def _words(render, messages, number, text):
    """The slice of the text that has a message's words, and what follows them in a last turn."""
    first, last = _unused(text)
    content, is_printed = messages[number]["content"], False
    for part in _parts(content):
        words = f"{content[: part.start]}{first}{content[part]}{last}{content[part.stop :]}"
        marked = [*messages[:number], {**messages[number], "content": words}]
        whole = render([*marked, *messages[number + 1 :]])
        before, _, rest = whole.partition(first)
        inside, end, after = rest.partition(last)
        if end and text == before + inside + after:
            start, is_last = len(before), number == len(messages) - 1
            closing = after if is_last else render(marked).rpartition(last)[2]
            return slice(start, start + len(inside)), closing
        is_printed |= first in whole or last in whole
    if is_printed:
        raise BadInput(_rewritten(messages))
    raise BadInput(
        f"the chat template leaves out a response of {_conversation(messages)}: take the model's"
        f" {tokenizer_files.TEMPLATE}, or {VICUNA}"
    )


def _unused(text):
    """Two characters that do not occur in the text."""
    unused = (chr(code) for code in MARKS if chr(code) not in text)
    return next(unused), next(unused)


def _parts(content: str) -> Iterator[slice]:
    """The slices of a message that templates print: all, all but outer blanks, or its answer."""
    answer = content.rfind(ANSWER) + len(ANSWER) if ANSWER in content else 0
    for start in (0, answer):
        yield slice(start, len(content))
        yield slice(len(content) - len(content[start:].lstrip()), len(content.rstrip()))


def _start(render, earlier, text, words):
    """The position in the text at which the model's answer to the earlier messages begins."""
    try:
        begun = render(earlier, True)
        if not text.startswith(begun) or len(begun) > words.stop:
            return words.start
        is_beginning = not text[len(begun) : words.start].strip() or begun != render(earlier)
    except BadInput:  # templates may demand a first turn of the user
        return words.start
    return len(begun) if is_beginning else words.start


def _end(text, place, closing, special):
    """The end of a turn whose words end at a place, and whether it is a special token's end."""
    printed = os.path.commonprefix([text[place:], closing])
    ends = [(printed.find(token), -len(token)) for token in special if token in printed]
    start, size = min(ends, default=(0, 0))
    return place + start - size, bool(ends)


def _rewritten(messages):
    return (
        f"the chat template does not print each response of {_conversation(messages)} once and as"
        f" it is, so that its borders are unknown; {VICUNA}"
    )


def _conversation(messages):
    """A conversation in a message."""
    first = messages[0] if messages else {"role": "nobody", "content": ""}
    return f"the conversation that the {first['role']} begins with {quoted(first['content'], 40)}"


# Jinja.


def _compiled(template: str) -> Any:
    try:
        from jinja2 import TemplateError, ext, sandbox
    except ImportError as error:
        raise missing(error, "llm") from error

    def fail(message):
        raise TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols, _generation()]
    )
    environment.globals["raise_exception"] = fail
    environment.filters["tojson"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.intercepted_binops = frozenset({"*", "**"})
    environment.binop_table |= {"*": _product, "**": _power}
    try:
        return environment.from_string(_limited(environment.parse(template)))
    except Exception as error:  # Jinja compiles to Python, which may be nested too deeply
        remedy = tokenizer_files.OTHER
        raise BadInput(f"the chat template is invalid ({reason_of(error)}): {remedy}") from error


def _generation():
    """Jinja's extension that prints what is between transformers' tags `generation`."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _limited(tree):
    """The syntax tree of a template that looks at the time in each pass of a loop and each call."""
    from jinja2 import nodes

    def look(line):
        name = nodes.Name("take_time", "load", lineno=line)
        return nodes.Call(name, [], [], None, None, lineno=line)

    for loop in list(tree.find_all(nodes.For)):
        test = look(loop.lineno)
        loop.test = nodes.And(test, loop.test, lineno=loop.lineno) if loop.test else test
    for called in list(tree.find_all((nodes.Macro, nodes.CallBlock, nodes.Block))):
        called.body.insert(0, nodes.ExprStmt(look(called.lineno), lineno=called.lineno))
    return tree.set_environment(tree.environment)


def _clock():
    """A function that returns True until the time of a template is over, and then raises."""
    end = time.monotonic() + SECONDS

    def take_time():
        if time.monotonic() > end:
            raise BadInput(f"it did not end within {SECONDS} seconds")
        return True

    return take_time


def _product(a, b):
    one, other = (len(each) if hasattr(each, "__len__") else abs(each) for each in (a, b))
    if one * other > LARGEST_PRODUCT:
        raise BadInput(f"a product is above {LARGEST_PRODUCT:,}")
    return a * b


def _power(a, b):
    raise BadInput("it computes a power")
