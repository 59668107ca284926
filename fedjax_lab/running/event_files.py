"""Writes a run's evaluations, config and pictures to event files, which TensorBoard reads."""

import io
import struct
import sys
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedjax_lab.running import files, metrics

ENDING = ".fedjax_lab"  # of event files that this package wrote and may replace
BARS = 20  # bars of a histogram


def begin(target: Path) -> str:
    """Removes this package's earlier event files of a run; returns the name for its new files.

    The new name sorts after all earlier ones.
    """
    ours = f"*tfevents*{ENDING}"
    for path in (*target.glob(ours), *target.glob(f"seed-*/{ours}")):
        path.unlink()
    return f"events.out.tfevents.{time.time_ns()}{ENDING}"


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
    """[Summary] of an image file; [] if it is not a complete image, such as one being written."""
    from tensorboardX.summary import Summary

    data = path.read_bytes()
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except (OSError, SyntaxError, ValueError):
        print(f"skipped {path}, which is not a complete image file", file=sys.stderr)
        return []
    size = {"width": image.width, "height": image.height, "colorspace": len(image.getbands())}
    shown = Summary.Image(encoded_image_string=data, **size)
    return [Summary(value=[Summary.Value(tag=tag, image=shown)])]


def append(path: Path, new: Iterable[tuple[int, float, Any]]) -> None:
    """Appends (step, wall time, Summary) events as TFRecords.

    A TFRecord is a length, its checksum, the event, and its checksum.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    events = [Event(step=step, wall_time=at, summary=summary) for step, at, summary in new]
    if not path.exists():
        metrics.make_folder(path.parent)
        events.insert(0, Event(wall_time=time.time(), file_version="brain.Event:2"))
    with path.open("ab") as file:
        for event in events:
            data = event.SerializeToString()
            length = struct.pack("<Q", len(data))
            checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
            file.write(length + checks[0] + data + checks[1])
