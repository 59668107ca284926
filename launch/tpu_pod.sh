#!/bin/bash
# One run over all hosts of a TPU pod slice: the same command on each; jax finds the others.
#
#   launch/tpu_pod.sh NAME ZONE --config=configs/fashion_mnist.py --workdir=runs/large
#
# Needs gcloud, and on every host the repository in the folder fedjax_lab of the home, with an
# environment .venv in it:
#
#   gcloud compute tpus tpu-vm ssh NAME --zone=ZONE --worker=all --command='git clone REPOSITORY
#       fedjax_lab && cd fedjax_lab && python3 -m venv .venv && .venv/bin/pip install -e . "jax[tpu]"'
#
# The workdir is written on worker 0. Add --resume to go on.

set -eu
name=$1 zone=$2
shift 2
exec gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command \
    "cd fedjax_lab && exec .venv/bin/python -m fedjax_lab.main --distributed=auto $(printf '%q ' "$@")"
