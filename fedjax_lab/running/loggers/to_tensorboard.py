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
    began = (folder / "config.json").stat().st_mtime
    config = json.dumps(facts.config, indent=2)
    events = EventFiles(folder / "tensorboard")
    events.add_config(config, began)

    def log(rows):
        events.add_rows(rows, began, share=1 / len(facts.config["seeds"]))
        if rows[0]["round"] >= facts.round:  # earlier files have what an earlier call logged
            events.flush()

    def end(summary):
        pictures = (folder / "partition.png", *sorted(folder.glob("plots/*.png")))
        for path in pictures if summary is not None else ():
            if path.is_file():
                tag = path.relative_to(folder).with_suffix("").as_posix()
                events.add_picture(summary["rounds"], path, tag)
        events.close()

    return Logger(log, end)
