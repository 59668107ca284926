"""Logs runs to Weights & Biases, configured by its environment variables (WANDB_PROJECT, ...).

If no user is logged in or the service cannot be reached, a run is logged offline to WANDB_DIR, from
which `wandb sync` uploads it.
"""

import os

from fedjax_lab.errors import warn
from fedjax_lab.running.loggers import Facts, Logger, final, scalars

REACH_SECONDS = 5  # time limit for checking whether the service can be reached
LIMITS = {"init_timeout": 10, "finish_timeout": 10, "finish_timeout_raises": True}  # seconds


def begin(facts: Facts) -> Logger:
    """Starts a new run in the service, or continues the one whose id is in `facts`."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "fedjax_lab",
        group=os.environ.get("WANDB_RUN_GROUP") or facts.group,
        name=os.environ.get("WANDB_NAME") or facts.name,
        config=facts.config,
        id=facts.id,
        resume="allow",
        reinit="create_new",  # several joined runs may be active at once
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

    # Each process that logs offline writes separate files, and logs all rounds to them.
    return Logger(log, end, id=run.id, round=0 if run.offline else facts.round)


def _mode(wandb):
    """The mode "offline" if the service cannot be used now; None keeps the user's own mode."""
    if os.environ.get("WANDB_MODE"):
        return None
    url = wandb.setup().settings.base_url
    if not wandb.login(prompt=False, verify=False):
        reason = "no user is logged in"
    elif not _answers(url):
        reason = f"{url} cannot be reached"
    else:
        return None
    warn(f"--log=wandb: {reason}; the run is logged offline; use `wandb sync` to upload it")
    return "offline"


def _answers(url):
    import requests  # a dependency of wandb

    try:
        requests.head(url, timeout=REACH_SECONDS)
    except requests.RequestException:
        return False
    return True
