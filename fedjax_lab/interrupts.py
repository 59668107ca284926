"""Ctrl-C and SIGTERM, at any moment of a command.

`watch` starts a thread that ends the process at the first signal: one line on stderr and exit code
130. An exception in the main thread would not do. It is raised only when compiled code returns, it
crashes a library that is just being imported, and some libraries swallow it. Ending at once is safe
because every file is written under another name first, or appended to line by line.

While rounds are played, `delayed` turns the first signal into an event, so that the state is saved.
Only the standard library is imported here: a command watches before it imports anything else.
"""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "stopping after the rounds under way; once more to stop at once"

_watching = False
_delayed: list[tuple[threading.Event, str]] = []  # of the `delayed` blocks under way
stderr = 2  # the descriptor of the last words
children: set = set()  # of subprocess.Popen, which `stop` kills: they end with this process


def _interrupted() -> str:
    return "interrupted"


_last_words: Callable[[], str] = _interrupted


def watch() -> None:
    """From now on a signal ends this process. For commands, in their first line."""
    global _watching
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _arm()
    # The last of all exit functions, as it is the first: from there on no thread can act, and the
    # default action would leave the exit code of a signal behind work that is done.
    atexit.register(_ignore)
    threading.Thread(target=_act_on_signals, args=(reader,), daemon=True).start()
    _watching = True


def _arm():
    """Python notes the signal and passes it on to the thread; nothing is raised anywhere."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)


def _ignore():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _act_on_signals(reader):
    while number := os.read(reader, 1):
        if number[0] in SIGNALS:
            waiting = [(event, message) for event, message in _delayed if not event.is_set()]
            if not waiting:
                stop()
            event, message = waiting[-1]
            event.set()
            tell(message, descriptor=1)


def stop() -> None:
    """Ends this process and its children at once, with its last words."""
    try:
        for child in list(children):
            child.kill()
        if words := _last_words():  # else they have been said
            tell(words, descriptor=stderr)
        for child in list(children):
            child.wait(timeout=5)  # so that its folder is free
    finally:
        os._exit(CODE)


def tell(text: str, descriptor: int) -> None:
    """Writes a line past Python's buffers."""
    with contextlib.suppress(OSError):
        line = "\n" * os.isatty(descriptor) + text + "\n"  # a progress bar may stand there
        os.write(descriptor, line.encode(errors="backslashreplace"))


def set_last_words(words: Callable[[], str]) -> None:
    """`words` gives the line that a signal prints: what was saved, and how to continue."""
    global _last_words
    _last_words = words


@contextlib.contextmanager
def delayed(message: str = STOPPING) -> Iterator[threading.Event]:
    """Inside, the first signal only sets the event that this yields; the second one is not delayed.

    The first signal also prints the message. Where nobody watches, as in a notebook, the second
    signal acts as the system's default, and outside of the main thread no signal is caught.
    """
    event = threading.Event()
    if _watching:
        _arm()  # anew: a library such as the distributed runtime may have handlers of its own
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

    def note(number, frame):
        event.set()
        tell(message, descriptor=1)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # Python's own handler waits for compiled code

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
