"""Chains of causes that end in a circle, and commands that search them."""

import errno

import optional

from fedjax_lab.commands import command
from fedjax_lab.engine import processes
from fedjax_lab.errors import MOST_CAUSES, BadInput, causes


def circle(*errors):
    for error, cause in zip(errors, [*errors[1:], errors[0]], strict=True):
        error.__cause__ = cause
    return errors[0]


def test_every_cause_of_a_circle_is_visited_once():
    first, second = ValueError("a"), KeyError("b")
    assert list(causes(circle(first, second))) == [first, second]
    alone = ValueError("c")
    assert list(causes(circle(alone))) == [alone]
    assert list(causes(None)) == []


def test_a_context_counts_unless_there_is_a_cause():
    outer, cause, context = ValueError("a"), ValueError("b"), ValueError("c")
    outer.__context__ = context
    assert list(causes(outer)) == [outer, context]
    outer.__cause__ = cause
    assert list(causes(outer)) == [outer, cause]


def test_a_long_chain_is_cut():
    error = None
    for number in range(10_000):
        error, inner = ValueError(number), error
        error.__cause__ = inner
    assert len(list(causes(error))) == MOST_CAUSES


def test_a_circle_of_causes_is_searched_to_its_end(capsys):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert command.machine_failure(circle(ValueError("a"), KeyError("b"))) is None
    assert command.machine_failure(circle(ValueError("a"), full)) == "No space left on device"
    assert not processes._of_runtime(circle(ValueError("a"), KeyError("b")))

    def raises(_):
        raise circle(BadInput("damaged"), ValueError("a"))

    assert command.call(raises, []) == 2
    assert capsys.readouterr().err == "error: damaged\n"


def test_an_error_without_words_is_no_failure_of_the_machine():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    assert command.machine_failure(Silent()) is None
    assert command.machine_failure(MemoryError()) == "out of memory"


def test_a_damaged_file_of_the_hub_is_one_line(tmp_path, capsys):
    optional.module("datasets")
    from fedjax_lab.data.sources import hub

    (tmp_path / "train.parquet").write_bytes(b"PAR1 is all that is left")
    assert command.call(lambda _: hub.huggingface(dataset=str(tmp_path)), []) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path} cannot be read (") and message.count("\n") == 1
