"""Logs runs to MLflow, configured by its environment variables (MLFLOW_TRACKING_URI, ...).

Without MLFLOW_EXPERIMENT_NAME, the experiment is named after the sweep, or `fedjax_lab`.
"""

import json
import os
import re
import time

from flax.traverse_util import flatten_dict

from fedjax_lab.running.loggers import Facts, Logger, final, scalars

HURRIED = {  # limits MLflow's own retries, because this package repeats failed calls itself
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
PARAMETERS = 100  # the most parameters that MLflow accepts in one call
LONGEST = 6000  # the most characters of a parameter's value


def begin(facts: Facts) -> Logger:
    """Starts a new run in MLflow, or continues the one whose id is in `facts`."""
    for name, value in HURRIED.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()
    round_, run = facts.round, facts.id
    if run is None:
        round_, run = 0, _new_run(client, facts)
        flat = flatten_dict(facts.config, sep=".")
        parameters = [Param(_key(key), str(value)[:LONGEST]) for key, value in flat.items()]
        for i in range(0, len(parameters), PARAMETERS):
            client.log_batch(run, params=parameters[i : i + PARAMETERS])
    else:
        client.set_terminated(run, "RUNNING")

    def put(values, step):
        now = int(1000 * time.time())
        client.log_batch(run, [Metric(_key(k), float(v), now, step) for k, v in values.items()])

    def log(rows):
        put(scalars(rows), rows[0]["round"])

    def end(summary):
        if summary is not None:
            put(final(summary), summary["rounds"])
            if "stopped" in summary:
                client.set_tag(run, "stopped", json.dumps(summary["stopped"]))
        client.set_terminated(run, "KILLED" if summary is None else "FINISHED")

    return Logger(log, end, id=run, round=round_)


def _new_run(client, facts):
    experiment = _experiment(client, os.environ.get("MLFLOW_EXPERIMENT_NAME") or facts.group)
    return client.create_run(experiment, run_name=facts.name).info.run_id


def _experiment(client, name):
    """The id of the experiment, created if needed; other cells may create it at the same time."""
    name = name or "fedjax_lab"
    existing = client.get_experiment_by_name(name)
    if existing is not None:
        return existing.experiment_id
    try:
        return client.create_experiment(name)
    except Exception:
        existing = client.get_experiment_by_name(name)
        if existing is None:
            raise
        return existing.experiment_id


def _key(text):
    """The text as a valid name for MLflow."""
    return re.sub(r"[^\w\-. :/]", "_", text)
