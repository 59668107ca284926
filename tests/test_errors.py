"""Error messages about bad input are one readable line, whatever the input is."""

import argparse
import errno

import optional
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import complaint

from fedjax_lab import errors, ranges
from fedjax_lab.commands import command
from fedjax_lab.engine import processes
from fedjax_lab.errors import MOST_CAUSES, BadInput, causes


def test_a_long_message_keeps_its_beginning_and_its_end(capsys):
    assert errors.tell(BadInput("config.x is " + "9" * 5000 + "; did you mean 'y'?")) == 2
    line = capsys.readouterr().err
    assert len(line) <= len("error: ") + errors.LONGEST + 1 and line.count("\n") == 1
    assert line.startswith("error: config.x is 999") and line.endswith("9; did you mean 'y'?\n")
    errors.tell(BadInput("short\nlines"))
    assert capsys.readouterr().err == "error: short lines\n"


@settings(deadline=None, derandomize=True, database=None)
@given(st.text(max_size=60), st.integers(10, 40))
def test_a_text_is_cut_to_its_limit_and_keeps_both_ends(text, longest):
    cut = errors.cut(text, longest)
    assert len(cut) <= longest and cut[:2] == text[:2] and cut[-2:] == text[-2:]
    assert cut == text or len(text) > longest


def test_a_value_is_shown_briefly_or_named_by_its_type():
    nested = []
    for _ in range(10**5):
        nested = [nested]
    assert errors.quoted(nested) == "[[[...]]]"
    assert errors.quoted(10**5000) == "a value of type int that cannot be shown"
    assert errors.quoted("a") == "'a'" and len(errors.quoted("a" * 5000)) == 80
    assert len(complaint(errors.check_choice, "a.b", "x" * 5000, ["one", "two"])) < 150
    assert len(complaint(ranges.NOT_NEGATIVE.check, "a.b", -(10**4000))) < 150


def test_an_unknown_flag_is_reported_once():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--follow")
    message = complaint(errors.parse, parser, ["a", *["--folow=1"] * 400])
    assert message == "unexpected argument '--folow=1'; did you mean '--follow'?"
    assert errors.parse(parser, ["a", "--follow=b"]).folders == ["a"]


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b"])
def test_an_impossible_path_is_rejected(path, tmp_path):
    assert complaint(errors.check_path, "--out", path).startswith("--out")
    errors.check_path("--out", str(tmp_path / "new"))
    errors.check_path("--out", None)


# Chains of causes that end in a circle, and commands that search them.


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


def test_a_context_counts_unless_there_is_a_cause_and_a_long_chain_is_cut():
    outer, cause, context = ValueError("a"), ValueError("b"), ValueError("c")
    outer.__context__ = context
    assert list(causes(outer)) == [outer, context]
    outer.__cause__ = cause
    assert list(causes(outer)) == [outer, cause]
    error = None
    for number in range(10_000):
        error, inner = ValueError(number), error
        error.__cause__ = inner
    assert len(list(causes(error))) == MOST_CAUSES


def test_a_circle_of_causes_is_searched_to_its_end(capsys):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert command.machine_failure(circle(ValueError("a"), KeyError("b"))) is None
    assert command.machine_failure(circle(ValueError("a"), full)) == "No space left on device"
    assert not processes._is_runtime_error(circle(ValueError("a"), KeyError("b")))

    def raises(_):
        raise circle(BadInput("damaged"), ValueError("a"))

    assert command.call(raises, []) == 2
    assert capsys.readouterr().err == "error: damaged\n"


def test_a_damaged_file_of_the_hub_is_one_line(tmp_path, capsys):
    optional.module("datasets")
    from fedjax_lab.data.sources import hub

    (tmp_path / "train.parquet").write_bytes(b"PAR1 is all that is left")
    assert command.call(lambda _: hub.huggingface(dataset=str(tmp_path)), []) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path} cannot be read (") and message.count("\n") == 1
