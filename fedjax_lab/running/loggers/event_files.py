"""Writes a run's evaluations, config and pictures to event files for TensorBoard."""

import io
import sys
import textwrap
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedjax_lab.data import safe
from fedjax_lab.errors import shown
from fedjax_lab.running.storage import files, metrics

ENDING = ".fedjax_lab"  # of event files that this package wrote and may replace
BARS = 20  # bars of a histogram


class EventFiles:
    """The event files of a run: one in its folder, and one in the folder `seed-N` of each seed."""

    def __init__(self, target: Path):
        """Removes the event files of the run that this package wrote earlier."""
        self._target = target
        self._writers: dict[Path, Any] = {}
        for pattern in (f"*tfevents*{ENDING}", f"seed-*/*tfevents*{ENDING}"):
            for path in target.glob(pattern):
                path.unlink()

    def _add(self, folder, step, at, summary):
        from tensorboardX.event_file_writer import EventsWriter  # it has no thread
        from tensorboardX.proto.event_pb2 import Event

        if folder not in self._writers:
            metrics.make_folder(folder)
            self._writers[folder] = EventsWriter(str(folder / "events"), ENDING)
        self._writers[folder].write_event(Event(step=step, wall_time=at, summary=summary))

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
        """Writes everything to disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Writes everything to disk and closes the files."""
        for writer in self._writers.values():
            writer.close()


def numbers(row: dict) -> Any:
    """The Summary of an evaluation: its measurements, and histograms of the clients' values."""
    from tensorboardX.summary import Summary, make_histogram

    tagged = metrics.tagged(row).items()
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
    size = {"width": image.width, "height": image.height, "colorspace": len(image.getbands())}
    drawn = Summary.Image(encoded_image_string=data, **size)
    return [Summary(value=[Summary.Value(tag=tag, image=drawn)])]
