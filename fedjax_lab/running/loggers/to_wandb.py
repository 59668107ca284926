"""Runs in Weights & Biases, as its environment variables say (WANDB_PROJECT, WANDB_MODE, ...).

Where nobody is logged in or the service cannot be reached, a run is logged offline, in WANDB_DIR,
from where `wandb sync` uploads it.
"""

import os

from fedjax_lab.errors import warn
from fedjax_lab.running.loggers import Facts, Logger, final, scalars

REACH_SECONDS = 5  # to see whether the service can be reached
LIMITS = {"init_timeout": 10, "finish_timeout": 10, "finish_timeout_raises": True}  # seconds


def begin(facts: Facts) -> Logger:
    """A new run, or the one with this id."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "fedjax_lab",
        group=os.environ.get("WANDB_RUN_GROUP") or facts.group,
        name=os.environ.get("WANDB_NAME") or facts.name,
        config=facts.config,
        id=facts.id,
        resume="allow",
        reinit="create_new",  # joined runs are several at a time
        mode=_mode(wandb),
        settings=wandb.Settings(console="off", **LIMITS),
    )

    def log(rows):
        run.log(scalars(rows), step=rows[0]["round"])

    def end(summary):
        if summary is not None:
            stopped = {"stopped": summary["stopped"]} if "stopped" in summary else {}
            run.summary.update({**final(summary), **stopped})
        run.finish(exit_code=int(summary is None))

    # Each process that logs offline makes files of its own, so that the newest have the whole run.
    return Logger(log, end, id=run.id, round=0 if run.offline else facts.round)


def _mode(wandb):
    """Offline, where the service cannot be used now; None: as the user has chosen."""
    if os.environ.get("WANDB_MODE"):
        return None
    url = wandb.setup().settings.base_url
    if not wandb.login(prompt=False, verify=False):
        reason = "nobody is logged in"
    elif not _answers(url):
        reason = f"{url} cannot be reached"
    else:
        return None
    warn(f"--log=wandb: {reason}; the run is logged offline, `wandb sync` uploads it")
    return "offline"


def _answers(url):
    import requests  # which wandb needs

    try:
        requests.head(url, timeout=REACH_SECONDS)
    except requests.RequestException:
        return False
    return True
