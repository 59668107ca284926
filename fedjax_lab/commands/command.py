"""The interface of all commands to the operating system: streams, signals, failures, exit codes.

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
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

from fedjax_lab.data import limits
from fedjax_lab.running import interrupts

COMMANDS = {  # of the package, by name: (module, description)
    "run": ("fedjax_lab.main", "trains one config"),
    "sweep": ("fedjax_lab.sweep", "trains every method at every point of a grid"),
    "report": ("fedjax_lab.report", "compares runs"),
    "paper": ("fedjax_lab.paper", "reruns published tables"),
    "figures": ("fedjax_lab.figures", "draws learning curves and the analyses of five papers"),
    "generate": ("fedjax_lab.generate", "prints what the language model of a run answers"),
    "audit": ("fedjax_lab.audit", "attacks a run through its uploads and models"),
    "data": ("fedjax_lab.data", "fetches data sets and prepares large ones"),
    "tensorboard": (
        "fedjax_lab.tensorboard",
        "exports runs to TensorBoard, also while they train",
    ),
    "completion": ("fedjax_lab.completion", "prints a script that completes commands in a shell"),
}

SIGNS = (  # of failures of the machine, in messages of libraries
    "RESOURCE_EXHAUSTED",
    "No space left on device",
    "Disk quota exceeded",
    "std::bad_alloc",
    "can't start new thread",
    "failed to map segment",
)
LEAST = 3 << 28  # bytes of address space without which the libraries cannot be imported


_streams: dict[str, io.TextIOWrapper] = {}  # stdout and stderr, set by `begin`
_how_to_continue: Callable[[], str] = str  # set by `continue_with`; str() is the empty text
_what_is_saved: Callable[[], str] = str


class Outlet(io.RawIOBase):
    """A file descriptor to print to. Output that cannot be written is dropped; `error` says why."""

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
        """Writes as much as possible; returns the full length in any case."""
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
    """Prepares this process for a command. From here on, Ctrl-C ends it with one printed line.

    Ends the process at once if a limit leaves too little memory even for the imports.
    """
    _open_closed_streams()
    if low := limits.too_low(LEAST):
        fail(f"out of memory; {low} to import the libraries")
    interrupts.watch()
    sys.excepthook = _tell_variable
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        encoding = getattr(getattr(sys, name), "encoding", None) or "utf-8"
        stream = io.TextIOWrapper(
            io.BufferedWriter(Outlet(descriptor)),
            encoding=encoding,
            errors="backslashreplace",  # names that the terminal cannot show
            line_buffering=name == "stderr" or os.isatty(descriptor),
        )
        setattr(sys, name, stream)
        stream.close = lambda: None  # type: ignore[method-assign]  # no part can close the output
        _streams[name] = stream


def _tell_variable(kind, error, trace):
    """An exception hook: a value of a JAX_ variable that JAX refuses ends the process in one line.

    JAX reads these variables when it is imported, which may be before `call`.
    """
    from fedjax_lab.errors import BadInput, reason_of, tell

    given = {key: text for key, text in os.environ.items() if key.startswith("JAX_")}
    frames = traceback.extract_tb(trace) if isinstance(error, ValueError) else []
    file = frames[-1].filename if frames else ""  # the one that raised it
    if not given or not file.endswith(os.path.join("jax", "_src", "config.py")):
        sys.__excepthook__(kind, error, trace)
        return
    reason = reason_of(error)
    named = [key for key in given if key.lower() in reason.lower()]  # JAX names its flag
    words = " or ".join(f"{key}={given[key]}" for key in named or given)
    tell(BadInput(f"the environment variable {words}: {reason}"))
    sys.stderr.flush()
    os._exit(2)


def _open_closed_streams():
    """Opens closed standard streams on the null device, so that no other file gets their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one


def run(
    main: Callable[[list[str]], int],
    arguments: list[str],
    *,
    prints_result: bool = False,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> NoReturn:
    """Calls a command and exits the process with its exit code.

    Args:
      main: the command, which takes the arguments and returns the exit code.
      arguments: the command's arguments.
      prints_result: whether the printed output is the command's result, so that the exit code is 1
        if it cannot be written. Otherwise its files are the result, and errors of the output are
        ignored. A closed pipe is never an error.
      leave: exits the process.
    """
    code = main(arguments)
    with contextlib.suppress(OSError):
        _streams["stdout"].flush()
    output: Any = _streams["stdout"].buffer  # wraps an `Outlet`
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
    """Calls function(arguments), reports errors in one line, and returns the exit code.

    The exit code is 2 after BadInput, for a path that cannot be used, or after an error in the
    user's own code; 1 after a failure of the machine, such as a full disk; 130 after an interrupt.
    Other exceptions are bugs of the program and are raised again.

    Args:
      function: returns the exit code.
      arguments: the function's arguments.
      how_to_continue: what the user can do after an interrupt or a failure of the machine; see
        `continue_with`.
      help_text: printed, instead of calling the function, if the arguments have -h or --help.
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
        interrupts.set_last_words(str)  # a second signal prints nothing
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


def continue_with(how: Callable[[], str], saved: Callable[[], str] = str) -> None:
    """Sets the functions that return the last sentences of a command that is interrupted or fails.

    `how` returns what the user can do to continue. `saved` returns what has been saved; it is
    called only for failures while rounds are played. Both are called when the event happens.
    """
    global _how_to_continue, _what_is_saved
    _how_to_continue, _what_is_saved = how, saved


def fail(text: str) -> NoReturn:
    """Prints an error in one line and exits this process at once with code 1, from any thread."""
    line = _joined(f"error: {text}", _what_is_saved(), _how_to_continue())
    interrupts.tell(line, interrupts.stderr)
    os._exit(1)


def divert_libraries() -> BinaryIO:
    """Redirects what compiled libraries write to stderr; returns the file that collects it.

    What Python code writes to `sys.stderr` is still printed.
    """
    stream: Any = sys.stderr.buffer  # wraps an `Outlet`
    stream.raw.descriptor = interrupts.stderr = os.dup(2)
    file = tempfile.TemporaryFile()
    os.dup2(file.fileno(), 2)
    return file


def machine_failure(error: BaseException | None) -> str | None:
    """Describes an error that the machine caused, such as a full disk; None for other errors.

    The causes of the error are searched too. BadInput caused by a MemoryError is not a failure of
    the machine: a file whose header claims a size beyond the memory is invalid data.
    """
    from fedjax_lab.errors import MACHINE, BadInput, causes, message_of

    of_data = isinstance(error, BadInput)
    for each in causes(error):
        if isinstance(each, OSError) and each.errno in MACHINE:
            name = "" if each.filename is None else f": {os.fsdecode(each.filename)}"
            return f"{each.strerror}{name}"
        if not of_data and isinstance(each, MemoryError):
            return _joined("out of memory", message_of(each))
        lines = [] if of_data else message_of(each).splitlines()
        if said := [line.strip() for line in lines if any(sign in line for sign in SIGNS)]:
            return said[0]
    return None


def users_mistake(error: BaseException) -> str:
    """The location and reason of an error in the user's own code; "" if it is from elsewhere."""
    from fedjax_lab.errors import place_of, reason_of

    place = place_of(error)
    return f"{place}: {reason_of(error)}" if place else ""


def report_failure(text: str) -> int:
    """Prints a failure of the machine in one line and returns the exit code 1."""
    from fedjax_lab.errors import BadInput, tell

    tell(BadInput(text))
    return 1


def _joined(*parts):
    return "; ".join(part for part in parts if part)
