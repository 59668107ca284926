"""Reads the arguments that several commands share: overrides of config keys, seeds, numbers."""

import argparse
import re

from absl import flags

from fedjax_lab.errors import BadInput, check_seeds, cut

MOST_SEEDS = 10_000  # in one range


def make_parser(*texts: str) -> argparse.ArgumentParser:
    """A parser of arguments, with these flags that take a text; names are given in full."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in texts:
        parser.add_argument(flag)
    return parser


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str | bool]]]:
    """Separates the overrides of config keys from all other arguments.

    Overrides are --config.KEY=VALUE, --config.KEY VALUE and, for keys that are true or false,
    --config.KEY and --noconfig.KEY. Files named by --flagfile are read first.

    Returns:
      The other arguments, and the overrides as pairs of a key and its text or truth value.
    """
    try:
        argv = flags.FLAGS.read_flags_from_files(argv)
    except (flags.Error, UnicodeError) as error:
        raise BadInput(str(error)) from error
    kept, overrides = [], []
    while argv:
        argument, *argv = argv
        match = re.fullmatch(r"--?(no)?config\.([^=]*)(=.*)?", argument, re.DOTALL)
        if match is None:
            kept.append(argument)
            continue
        negated, key, value = match.groups()
        if value is not None and not negated:
            overrides.append((key, value.removeprefix("=")))
        elif value is None and not negated and argv and not re.match(r"--?[A-Za-z]", argv[0]):
            overrides.append((key, argv.pop(0)))
        elif value is None:
            overrides.append((key, not negated))
        else:
            raise BadInput(f"--noconfig.{cut(key, 80)} takes no value")
    return kept, overrides


def parse_seeds(given: str | list[str] | None) -> list[int] | None:
    """The seeds of "0-2,5", or of a list such as ["0-2", "5"]; None if the flag is not given.

    Raises BadInput if a part is neither a whole number nor a range of them, or if a seed repeats.
    """
    texts = given.split(",") if isinstance(given, str) else given or []
    try:
        seeds = [seed for text in texts for seed in _range(text)]
    except ValueError as error:
        example = f"for example 0,1,2 or 0-4, a range of at most {MOST_SEEDS}"
        said = f"got {cut(','.join(texts), 80)}; {example}"
        raise BadInput(f"--seeds must be whole numbers, {said}") from error
    check_seeds(seeds or [0])
    return seeds or None


def _range(text):
    ends = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text.strip())
    if ends is None:
        return [_whole_number(text)]
    seeds = range(int(ends[1]), int(ends[2]) + 1)
    if not 0 < len(seeds) <= MOST_SEEDS:
        raise ValueError("empty range, or too many seeds")
    return seeds


def parse_profile(text: str | None) -> int | None:
    """The number of rounds to profile; None if the flag is not given.

    Raises BadInput if not whole.
    """
    if text is None:
        return None
    try:
        return _whole_number(text)
    except ValueError as error:
        raise BadInput(f"--profile must be a number of rounds, got {cut(text, 80)}") from error


def _whole_number(text):
    """The number of a text such as "10" or "1e1". ValueError if it is not a whole number."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)
