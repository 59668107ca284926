"""Shows the progress of a run: a bar on a terminal, plain lines in a pipe or a file."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from fedjax_lab.errors import printable
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation.units import is_percent, metric_of

LINE_SECONDS = 60.0  # time between two lines if there is no evaluation
SLOW_SECONDS = 10.0  # of a compilation that is explained


class ProgressBar:
    """A context manager that shows the progress of a run.

    total: number of rounds of the run. played: rounds already played. quiet: print nothing.
    part: the name of the run if it is a part of something with a bar of its own; it then has a
        second bar on a terminal, and prints no lines.
    """

    def __init__(self, total: int, played: int, quiet: bool, part: str = ""):
        shows = _is_terminal(sys.stderr) and (not part or _is_terminal(sys.stdout))
        self._lines = not quiet and not shows and not part
        self._part = part
        self._total = total
        self._began = 0.0, played  # when the clock was started, and the rounds played by then
        self._next_line = 0.0
        self._bar = tqdm(
            desc=printable(part) and f"{printable(part)}, round",
            total=total,
            initial=played,
            unit=" rounds",
            bar_format=(
                "{desc} {n_fmt}/{total_fmt} {postfix} |{bar}| {rate_noinv_fmt}, {remaining} left"
            ),
            disable=quiet or not shows,
            dynamic_ncols=True,
            leave=not part,
            position=1 if part else None,
            smoothing=0.1,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()

    def say(self, text: str) -> None:
        """Shows a text beside the bar, or as a line."""
        if self._lines:
            _print(text)
        elif not self._part:
            self._bar.set_description(printable(text))

    def tell(self, text: str) -> None:
        """Prints a line that stays visible above the bar."""
        if self._lines:
            _print(text)
        elif not self._bar.disable and not self._part:
            self._bar.write(printable(text))

    @contextlib.contextmanager
    def telling_if_slow(self, text: str) -> Iterator[None]:
        """Prints a line if the context takes more than SLOW_SECONDS."""
        timer = threading.Timer(SLOW_SECONDS, self.tell, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def start_clock(self, played: int) -> None:
        """Measures the pace and the remaining time from now on, with `played` rounds done."""
        self._began = time.monotonic(), played
        self._next_line = 0.0
        self._bar.unpause()

    def rounds(self, played: int, evaluated_next: bool) -> None:
        """Updates the number of rounds played; writes a line if the next one is due.

        evaluated_next: whether `evaluated` is called next, which writes a line itself.
        """
        self._bar.update(played - self._bar.n)
        if self._lines and not evaluated_next and time.monotonic() >= self._next_line:
            self._line(played)

    def evaluated(self, rows: list[dict]) -> None:
        """Shows the results of an evaluation; rows: the newest row of each seed."""
        parts = []
        scores = [score for row in rows if (score := metric_rows.headline(row)) is not None]
        measure = metric_rows.headline_measure(rows[0])
        if measure is not None and len(scores) == len(rows):
            metric = metric_of(measure)
            unit = " %" if is_percent(metric) else ""
            parts.append(f"{metric} {np.mean(scores):.{2 if unit else 4}f}{unit}")
        parts.append(f"train loss {np.mean([row['train_loss'] for row in rows]):.4f}")
        self._bar.set_postfix_str(", ".join(parts))
        if self._lines:
            self._line(rows[0]["round"], *parts)

    def _line(self, played, *parts):
        now = time.monotonic()
        began, played_before = self._began
        self._next_line = now + LINE_SECONDS
        pace = (played - played_before) / (now - began)
        left = tqdm.format_interval((self._total - played) / pace)
        shown = np.format_float_positional(pace, precision=3, fractional=False, trim="-")
        done = f"round {played}/{self._total}"
        _print("  ".join([done, *parts, f"{shown} rounds/s", f"{left} left"]))


def _is_terminal(stream):
    return stream is not None and not stream.closed and stream.isatty()


def _print(text):
    with contextlib.suppress(ValueError):  # the output has been closed
        print(f"{time.strftime('%H:%M:%S')}  {printable(text)}", flush=True)
