"""Writes event files for TensorBoard to the subfolder `tensorboard` of a run."""

import json

from fedjax_lab.errors import BadInput
from fedjax_lab.running import event_files
from fedjax_lab.running.loggers import Facts, Logger


def begin(facts: Facts) -> Logger:
    """Starts new event files for a run. Raises BadInput if the run has no folder."""
    if facts.folder is None:
        raise BadInput("the run has no folder for the event files; name one with --workdir")
    folder, target = facts.folder, facts.folder / "tensorboard"
    began = (folder / "config.json").stat().st_mtime
    config = json.dumps(facts.config, indent=2)
    with event_files.renewed(target) as file:
        event_files.append(target / file, [(0, began, event_files.text(config))])
    seeds = len(facts.config["seeds"])

    def log(rows):
        for row in rows:
            at = began + row["seconds"] / seeds
            event = row["round"], at, event_files.numbers(row)
            event_files.append(target / f"seed-{row['seed']}" / file, [event])

    def end(summary):
        if summary is None:
            return
        for path in (folder / "partition.png", *sorted(folder.glob("plots/*.png"))):
            if path.is_file():
                tag = path.relative_to(folder).with_suffix("").as_posix()
                at = summary["rounds"], path.stat().st_mtime
                pictures = event_files.picture(path, tag)
                event_files.append(target / file, [(*at, picture) for picture in pictures])

    return Logger(log, end)
