"""Writes a run's evaluations, config and pictures to event files, which TensorBoard reads."""

import contextlib
import io
import struct
import sys
import textwrap
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedjax_lab import writing
from fedjax_lab.data import safe
from fedjax_lab.errors import shown
from fedjax_lab.running import files, metrics

ENDING = ".fedjax_lab"  # of event files that this package wrote and may replace
BARS = 20  # bars of a histogram


@contextlib.contextmanager
def renewed(target: Path) -> Iterator[str]:
    """Yields the name for a run's new event files, which sorts after all earlier ones.

    This package's earlier event files of the run are removed at the end; after an error, the new
    ones are removed instead.
    """
    name, ours = f"events.out.tfevents.{time.time_ns()}{ENDING}", f"*tfevents*{ENDING}"
    earlier = [*target.glob(ours), *target.glob(f"seed-*/{ours}")]
    try:
        yield name
    except BaseException:
        earlier = [target / name, *target.glob(f"seed-*/{name}")]
        raise
    finally:
        for path in earlier:
            path.unlink(missing_ok=True)


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


def text(config: str) -> Any:
    """The Summary that shows a config.json."""
    from tensorboardX import summary

    return summary.text("config", textwrap.indent(config, "    "))  # code, in Markdown


def picture(path: Path, tag: str) -> list:
    """[Summary] of a PNG file; [] if it is not a complete image, such as one being written."""
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


def append(path: Path, new: Iterable[tuple[int, float, Any]]) -> None:
    """Appends (step, wall time, Summary) events as TFRecords: all of them, or none after an error.

    A TFRecord is a length, its checksum, the event, and its checksum.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    events = [Event(step=step, wall_time=at, summary=summary) for step, at, summary in new]
    if not path.exists():
        metrics.make_folder(path.parent)
        events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
    records = []
    for event in events:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
        records += [length, checks[0], data, checks[1]]
    writing.append(path, b"".join(records))
