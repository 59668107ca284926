"""What all commands share with the operating system: streams, signals, failures, exit codes.

    if __name__ == "__main__":  # before other imports, which take seconds
        command.begin()
    ...
    if __name__ == "__main__":
        command.run(main, sys.argv)

Only the standard library is imported at the top, so that `begin` can come first.
"""

import contextlib
import errno
import io
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from fedjax_lab import interrupts

SIGNS = ("RESOURCE_EXHAUSTED", "No space left on device", "Disk quota exceeded", "std::bad_alloc")


def _no_words() -> str:
    return ""


_how_to_continue: Callable[[], str] = _no_words  # see `continue_with`
_what_is_saved: Callable[[], str] = _no_words


class Outlet(io.RawIOBase):
    """A file descriptor to print to. What it cannot take is dropped, and `error` says why."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The file descriptor."""
        return self.descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self.descriptor)

    def write(self, data) -> int:
        """Writes what can be written; says that all of it was."""
        rest = memoryview(data).cast("B")
        try:
            while len(rest):
                rest = rest[os.write(self.descriptor, rest) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.error = error
        return len(data)


def begin() -> None:
    """Prepares this process for a command. Ctrl-C ends it from here on with one line."""
    _open_closed_streams()
    interrupts.watch()
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", None) or "utf-8"
        stream = io.TextIOWrapper(
            io.BufferedWriter(Outlet(descriptor)),
            encoding=encoding,
            errors="backslashreplace",  # names that the terminal cannot show
            line_buffering=name == "stderr" or os.isatty(descriptor),
        )
        setattr(sys, name, stream)


def _open_closed_streams():
    """Gives closed standard streams to the null device, before a file of ours takes their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one


def run(
    main: Callable[[list[str]], int],
    arguments: list[str],
    *,
    prints_result: bool = False,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> NoReturn:
    """Calls a command and leaves the process with its exit code.

    Args:
      main: takes the arguments, returns the exit code.
      arguments: of the command.
      prints_result: what it prints is its result, so that the exit code is 1 where that cannot be
        written. Otherwise its files are, and whoever reads its output may leave.
      leave: ends the process.
    """
    code = main(arguments)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    output: Any = sys.stdout.buffer  # around an `Outlet`
    error = output.raw.error
    if prints_result and code == 0 and error and error.errno != errno.EPIPE:
        code = report_failure(f"cannot write the output: {error.strerror}")
    leave(code)


def call(
    function: Callable[[list[str]], int],
    arguments: list[str],
    how_to_continue: str = "",
    help_text: str | None = None,
) -> int:
    """The exit code of function(arguments); what goes wrong is told in one line.

    2 after BadInput, where a path cannot be used, or where the user's own code fails; 1 after a
    failure of the machine, such as a full disk; 130 after an interrupt. Other exceptions are faults
    of the program: they pass.

    Args:
      function: returns the exit code.
      arguments: of the function.
      how_to_continue: what the user can do after an interrupt or a failure of the machine; see
        `continue_with`.
      help_text: printed instead, where the arguments ask for help.
    """
    from fedjax_lab.errors import BadInput, tell

    continue_with(lambda: how_to_continue)
    interrupts.set_last_words(lambda: _joined("interrupted", _how_to_continue()))
    try:
        if help_text is not None and {"-h", "--help"} & set(arguments):
            print(help_text)
            return 0
        return function(arguments)
    except KeyboardInterrupt as error:
        interrupts.set_last_words(_no_words)  # a second signal has nothing to add
        print(_joined(str(error) or "interrupted", _how_to_continue()), file=sys.stderr)
        return interrupts.CODE
    except (Exception, SystemExit) as error:
        if failure := machine_failure(error):
            what = str(error) if isinstance(error, BadInput) else failure
            return report_failure(_joined(what, _how_to_continue()))
        if isinstance(error, BadInput):
            return tell(error)
        if said := users_mistake(error):
            return tell(BadInput(said))
        if isinstance(error, OSError) and error.filename is not None:
            return tell(BadInput(f"{os.fsdecode(error.filename)}: {error.strerror}"))
        raise


def continue_with(how: Callable[[], str], saved: Callable[[], str] = _no_words) -> None:
    """`how` gives what the user can do after an interrupt or a failure, asked when one comes.

    `saved` gives what was saved until then, for failures that come while rounds are played.
    """
    global _how_to_continue, _what_is_saved
    _how_to_continue, _what_is_saved = how, saved


def fail(text: str) -> NoReturn:
    """Ends this process at once with a line and exit code 1, from any thread."""
    line = _joined(f"error: {text}", _what_is_saved(), _how_to_continue())
    interrupts.tell(line, interrupts.stderr)
    os._exit(1)


def divert_libraries() -> BinaryIO:
    """The file to which from now on goes what libraries write to stderr past Python.

    What Python writes stays where it was.
    """
    stream: Any = sys.stderr.buffer  # around an `Outlet`
    stream.raw.descriptor = interrupts.stderr = os.dup(2)
    file = tempfile.TemporaryFile()
    os.dup2(file.fileno(), 2)
    return file


def machine_failure(error: BaseException | None) -> str | None:
    """What failed where the machine is to blame, not the user or the program; else None.

    Looks through the causes of the error too. A file whose header asks for more memory than there
    is (BadInput because of a MemoryError) is a mistake in the data.
    """
    from fedjax_lab.errors import MACHINE, BadInput

    of_data = isinstance(error, BadInput)
    while error is not None:
        if isinstance(error, OSError) and error.errno in MACHINE:
            name = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
            return f"{error.strerror}{name}"
        if not of_data and isinstance(error, MemoryError):
            return _joined("out of memory", str(error))
        if not of_data and any(sign in str(error) for sign in SIGNS):
            lines = str(error).splitlines()
            return next(line.strip() for line in lines if any(sign in line for sign in SIGNS))
        error = error.__cause__ or error.__context__
    return None


def users_mistake(error: BaseException) -> str:
    """What a user's own code raised, and where; "" where the error comes from elsewhere."""
    from fedjax_lab.errors import place_of, reason_of

    place = place_of(error)
    return f"{place}: {reason_of(error)}" if place else ""


def report_failure(text: str) -> int:
    """Prints a failure of the machine in one line; returns the exit code 1."""
    from fedjax_lab.errors import BadInput, tell

    tell(BadInput(text))
    return 1


def _joined(*parts):
    return "; ".join(part for part in parts if part)
