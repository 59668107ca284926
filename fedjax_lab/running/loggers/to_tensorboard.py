"""Writes event files for TensorBoard to the subfolder `tensorboard` of a run."""

import json

from fedjax_lab.errors import BadInput
from fedjax_lab.running.loggers import Facts, Logger
from fedjax_lab.running.loggers.event_files import EventFiles


def begin(facts: Facts) -> Logger:
    """Starts new event files for a run. Raises BadInput if the run has no folder."""
    if facts.folder is None:
        raise BadInput("the run has no folder for the event files; name one with --workdir")
    folder = facts.folder
    began, share = (folder / "config.json").stat().st_mtime, 1 / len(facts.config["seeds"])
    logged: list[dict] = []
    events = None

    def log(rows):
        """Adds rows; after an error, which may leave half a record, all files are written anew."""
        nonlocal events
        try:
            if events is None:
                events = EventFiles(folder / "tensorboard")
                events.add_config(json.dumps(facts.config, indent=2), began)
                events.add_rows(logged, began, share)
            events.add_rows(rows, began, share)
            if rows[0]["round"] >= facts.round:  # earlier files have what an earlier call logged
                events.flush()
        except BaseException:
            if events is not None:
                events.discard()
            events = None
            raise
        logged.extend(rows)

    def end(summary):
        if events is not None:
            _end(events, folder, summary)

    return Logger(log, end)


def _end(events, folder, summary):
    """Adds the pictures of a finished run, and closes its files."""
    pictures = (folder / "partition.png", *sorted(folder.glob("plots/*.png")))
    for path in pictures if summary is not None else ():
        if path.is_file():
            tag = path.relative_to(folder).with_suffix("").as_posix()
            events.add_picture(summary["rounds"], path, tag)
    events.close()
