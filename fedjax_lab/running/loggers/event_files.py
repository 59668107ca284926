"""Writes a run's evaluations, config and pictures to event files for TensorBoard."""

import contextlib
import io
import os
import secrets
import socket
import sys
import textwrap
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedjax_lab.data import safe
from fedjax_lab.errors import shown
from fedjax_lab.running.storage import files, metric_rows

ENDING = ".fedjax_lab"  # of event files that this package wrote and may replace
BARS = 20  # bars of a histogram


class EventFiles:
    """The event files of a run: one in its folder, and one in the folder `seed-N` of each seed.

    A new file is a temporary one until `flush` or `close`. Only then, when all are whole, they
    replace the files of the run that this package wrote earlier.
    """

    def __init__(self, target: Path):
        self._target = target
        self._writers: dict[Path, Any] = {}
        self._paths: set[Path] = set()  # of all new files, when they are whole
        self._temporary: dict[Path, Path] = {}  # {temporary file: its path when it is whole}

    def _add(self, folder, step, at, summary):
        from tensorboardX.proto.event_pb2 import Event

        if folder not in self._writers:
            self._writers[folder] = self._begin(folder)
        event = Event(step=step, wall_time=at, summary=summary)
        self._writers[folder].write(event.SerializeToString())

    def _begin(self, folder):
        """A writer of a new file, which starts with the version of its format."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import RecordWriter  # it has no thread

        metric_rows.make_folder(folder)
        temporary, now = folder / f"events.{secrets.token_hex(4)}.tmp", time.time()
        path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}{ENDING}"
        writer = RecordWriter(str(temporary))
        self._paths.add(path)
        self._temporary[temporary] = path
        version = Event(wall_time=now, file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        return writer

    def add_rows(self, rows: Iterable[dict], began: float, share: float = 1) -> None:
        """Adds evaluations; share: the share of a row's seconds that counts, after `began`."""
        for row in rows:
            at = began + row["seconds"] * share
            self._add(self._target / f"seed-{row['seed']}", row["round"], at, numbers(row))

    def add_config(self, config: str, at: float) -> None:
        """Adds a config.json."""
        from tensorboardX import summary

        code = textwrap.indent(config, "    ")  # in Markdown
        self._add(self._target, 0, at, summary.text("config", code))

    def add_picture(self, step: int, path: Path, tag: str) -> None:
        """Adds a PNG file, unless it is not a complete image, such as one being written."""
        for summary in _picture(path, tag):
            self._add(self._target, step, path.stat().st_mtime, summary)

    def flush(self) -> None:
        """Writes everything to disk, and replaces the earlier files."""
        for writer in self._writers.values():
            writer.flush()
        self._replace()

    def close(self) -> None:
        """As `flush`; closes the files."""
        self.flush()
        for writer in self._writers.values():
            writer.close()

    def discard(self) -> None:
        """Closes the files after an error, and removes those that are still temporary."""
        for writer in self._writers.values():
            with contextlib.suppress(OSError):
                writer.close()
        for path in self._temporary:
            path.unlink(missing_ok=True)

    def _replace(self):
        """Names the temporary files, then removes earlier ones, also those of a killed process."""
        if not self._temporary:
            return
        for temporary, path in [*self._temporary.items()]:
            os.replace(temporary, path)
            del self._temporary[temporary]
        for pattern in (f"*tfevents*{ENDING}", "events.*.tmp"):
            for path in (*self._target.glob(pattern), *self._target.glob(f"seed-*/{pattern}")):
                if path not in self._paths:
                    path.unlink(missing_ok=True)


def numbers(row: dict) -> Any:
    """The Summary of an evaluation: its measurements, and histograms of the clients' values."""
    from tensorboardX.summary import Summary, make_histogram

    tagged = metric_rows.tagged(row).items()
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in tagged]
    for metric, forms in row.items():
        clients = forms.get("per_client") if isinstance(forms, dict) else None
        if clients := [value for value in clients or [] if files.NUMBER.fits(value)]:
            histogram = make_histogram(np.array(clients), BARS)
            values.append(Summary.Value(tag=f"{metric}/per_client", histo=histogram))
    return Summary(value=values)


def _picture(path, tag):
    """[Summary] of a PNG file; [] if it is not a complete image."""
    from tensorboardX.summary import Summary

    data = safe.content(path)
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=["PNG"])
        image.load()
    except Exception as error:  # a damaged file can make its parser raise any
        is_large = isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError)
        problem = "has too many pixels" if is_large else "is not a complete image file"
        print(f"skipped {shown(path)}, which {problem}", file=sys.stderr)
        return []
    drawn = Summary.Image(
        encoded_image_string=data,
        width=image.width,
        height=image.height,
        colorspace=len(image.getbands()),
    )
    return [Summary(value=[Summary.Value(tag=tag, image=drawn)])]
