"""What a run says while it goes on: a bar on a terminal, plain lines in a pipe."""

import sys

import numpy as np
from tqdm import tqdm

from fedjax_lab.running import metrics


class ProgressBar:
    """Use as a context. `quiet` says nothing."""

    def __init__(self, total: int, played: int, quiet: bool):
        self._lines = not quiet and not sys.stderr.isatty()
        self._total = total
        self._bar = tqdm(
            total=total,
            initial=played,
            bar_format="{desc} {n_fmt}/{total_fmt} {postfix} |{bar}| {remaining} left",
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
            print(text, flush=True)
        else:
            self._bar.set_description(text)

    def tell(self, text: str) -> None:
        """One line that stays."""
        if self._lines:
            print(text, flush=True)
        elif not self._bar.disable:
            self._bar.write(text)

    def start_clock(self) -> None:
        """The time left is judged from now on."""
        self._bar.unpause()

    def rounds(self, played: int) -> None:
        """So many rounds are done."""
        self._bar.update(played - self._bar.n)

    def evaluated(self, rows: list[dict]) -> None:
        """The newest row of each seed."""
        parts = []
        scores = [score for row in rows if (score := metrics.headline(row)) is not None]
        if len(scores) == len(rows):
            parts.append(f"accuracy {np.mean(scores):.2f} %")
        parts.append(f"train loss {np.mean([row['train_loss'] for row in rows]):.4f}")
        self._bar.set_postfix_str(", ".join(parts))
        if self._lines:
            done = f"round {rows[0]['round']}/{self._total}"
            print("  ".join([done, *parts, f"{rows[0]['seconds']:.1f} s"]), flush=True)
