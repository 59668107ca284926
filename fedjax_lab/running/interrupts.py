"""Handling of Ctrl-C, SIGTERM and SIGHUP at any moment of a command.

`watch` starts a thread that ends the process at the first signal, with one line on stderr and exit
code 130. Raising an exception in the main thread is not sufficient: it is raised only when compiled
code returns, it can break the import of a library, and some libraries swallow it. Ending the
process at once is safe because every file is written under a temporary name first, or appended to
line by line.

While rounds run, `delayed` turns the first signal into an event, so that the state is saved. A
closed terminal sends SIGHUP, often twice, so that one that follows another signal does not count.
Under nohup, which ignores SIGHUP, it stays ignored. Only the standard library is imported here,
because a command calls `watch` before any other import.
"""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = "finishing the current rounds; press Ctrl-C again to quit now"

_watching = False
_hangs_up = True  # whether SIGHUP is handled; false if it was ignored when `watch` was called
_delayed: list[tuple[threading.Event, str]] = []  # of the active `delayed` blocks
stderr = 2  # the file descriptor for the final message
children: set = set()  # subprocess.Popen objects, which `stop` kills together with this process


def _interrupted() -> str:
    return "interrupted"


_last_words: Callable[[], str] = _interrupted


def watch() -> None:
    """Makes the SIGNALS end this process from now on. Commands call it first."""
    global _watching, _hangs_up
    _hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _arm()
    # Registered first, so it runs as the last exit function. After it no thread can act on a
    # signal, whose default action would replace the exit code of a finished command.
    atexit.register(_ignore)
    threading.Thread(target=_act_on_signals, args=(reader,), daemon=True).start()
    _watching = True


def _arm():
    """Installs handlers that do nothing: Python still writes the signal to the thread's pipe."""
    for number in SIGNALS if _hangs_up else SIGNALS[:2]:
        signal.signal(number, lambda *_: None)


def _ignore():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _act_on_signals(reader):
    while number := os.read(reader, 1):
        if number[0] in SIGNALS:
            waiting = [(event, message) for event, message in _delayed if not event.is_set()]
            if not waiting and _delayed and number[0] == signal.SIGHUP:
                continue
            if not waiting:
                stop()
            event, message = waiting[-1]
            event.set()
            tell(message, descriptor=1)


def stop() -> None:
    """Prints the final message and ends this process and its children at once."""
    try:
        for child in list(children):
            child.kill()
        if words := _last_words():  # empty if they have already been printed
            tell(words, descriptor=stderr)
        for child in list(children):
            child.wait(timeout=5)  # so that the lock on its folder is released
    finally:
        os._exit(CODE)


def tell(text: str, descriptor: int) -> None:
    """Writes a line directly to a file descriptor, bypassing Python's buffers."""
    with contextlib.suppress(OSError):
        text = text if text.isprintable() else repr(text)[1:-1]
        line = "\n" * os.isatty(descriptor) + text + "\n"  # the line may hold a progress bar
        os.write(descriptor, line.encode(errors="backslashreplace"))


def set_last_words(words: Callable[[], str]) -> None:
    """Sets the function that returns the final message: what was saved, and how to continue."""
    global _last_words
    _last_words = words


@contextlib.contextmanager
def delayed(message: str = STOPPING) -> Iterator[threading.Event]:
    """A context in which the first signal sets the yielded event instead of ending the process.

    The first signal also prints the message; the second one is not delayed. Without `watch`, as in
    a notebook, the second signal has the system's default action, and outside of the main thread no
    signal is caught.
    """
    event = threading.Event()
    if _watching:
        _arm()  # again, because a library such as the distributed runtime may replace the handlers
    with contextlib.nullcontext() if _watching else _handlers(event, message):
        _delayed.append((event, message))
        try:
            yield event
        finally:
            _delayed.remove((event, message))


@contextlib.contextmanager
def _handlers(event, message):
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = SIGNALS[:2] if ignored else SIGNALS

    def note(number, frame):
        event.set()
        tell(message, descriptor=1)
        for each in numbers:  # Python's own handler waits for compiled code
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
