"""What a run says while it goes on: a bar on a terminal, plain lines in a pipe or a file."""

import sys
import time

import numpy as np
from tqdm import tqdm

from fedjax_lab.running import metrics

LINE_SECONDS = 60.0  # without an evaluation, until a line says how far the run is


class ProgressBar:
    """Use as a context. `quiet` says nothing."""

    def __init__(self, total: int, played: int, quiet: bool):
        self._lines = not quiet and not sys.stderr.isatty()
        self._total = total
        self._began = 0.0, played  # when the clock was started, and after how many rounds
        self._next_line = 0.0
        self._bar = tqdm(
            total=total,
            initial=played,
            unit=" rounds",
            bar_format=(
                "{desc} {n_fmt}/{total_fmt} {postfix} |{bar}| {rate_noinv_fmt}, {remaining} left"
            ),
            disable=quiet or self._lines,
            dynamic_ncols=True,
            smoothing=0.1,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()

    def say(self, text: str) -> None:
        """One line beside the bar."""
        if self._lines:
            _print(text)
        else:
            self._bar.set_description(text)

    def tell(self, text: str) -> None:
        """One line that stays."""
        if self._lines:
            _print(text)
        elif not self._bar.disable:
            self._bar.write(text)

    def start_clock(self, played: int) -> None:
        """The pace and the time left are judged from now on, when so many rounds are done."""
        self._began = time.monotonic(), played
        self._next_line = 0.0
        self._bar.unpause()

    def rounds(self, played: int, evaluated_next: bool) -> None:
        """So many rounds are done. Writes a line where there has been none for a while.

        evaluated_next: `evaluated` comes next, and writes one.
        """
        self._bar.update(played - self._bar.n)
        if self._lines and not evaluated_next and time.monotonic() >= self._next_line:
            self._line(played)

    def evaluated(self, rows: list[dict]) -> None:
        """The newest row of each seed."""
        parts = []
        scores = [score for row in rows if (score := metrics.headline(row)) is not None]
        if len(scores) == len(rows):
            parts.append(f"accuracy {np.mean(scores):.2f} %")
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


def _print(text):
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
