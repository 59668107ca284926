"""Runs in Weights & Biases, as its environment variables say (WANDB_PROJECT, WANDB_MODE, ...).

Where nobody is logged in or the service cannot be reached, a run is logged offline, in WANDB_DIR,
from where `wandb sync` uploads it.
"""

import os

from fedjax_lab.errors import warn
from fedjax_lab.running.loggers import Facts, Logger, final, scalars

INIT_SECONDS = 20  # to reach the service
FINISH_SECONDS = 20  # to upload what is left


def begin(facts: Facts) -> Logger:
    """A new run, or the one with this id."""
    import wandb

    run = _new_run(wandb, facts)
    offline = run.settings.mode != "online"

    def log(rows):
        run.log(scalars(rows), step=rows[0]["round"])

    def end(summary):
        if summary is not None:
            stopped = {"stopped": summary["stopped"]} if "stopped" in summary else {}
            run.summary.update({**final(summary), **stopped})
        run.finish(exit_code=int(summary is None))

    # Each process that logs offline makes files of its own: the newest have the whole run.
    return Logger(log, end, id=run.id, round=0 if offline else facts.round)


def _new_run(wandb, facts):
    limits = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS}
    manners = {"silent": True, "console": "off", "finish_timeout_raises": True}
    options = {
        "project": os.environ.get("WANDB_PROJECT") or "fedjax_lab",
        "group": os.environ.get("WANDB_RUN_GROUP") or facts.group,
        "name": os.environ.get("WANDB_NAME") or facts.name,
        "config": facts.config,
        "id": facts.id,
        "resume": "allow",
        "settings": wandb.Settings(**limits, **manners),
        "reinit": "create_new",  # joined runs are several at a time
    }
    if os.environ.get("WANDB_MODE"):
        return wandb.init(**options)
    try:
        if not wandb.login(prompt=False, verify=False):
            raise wandb.errors.UsageError("nobody is logged in")
        return wandb.init(**options)
    except wandb.errors.Error as error:
        said = (str(error).splitlines() or [""])[0]
        warn(f"--log=wandb: offline, as {said}; `wandb sync` uploads the run")
        return wandb.init(**options, mode="offline")
