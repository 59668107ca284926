#!/bin/bash
# Starts one run over all hosts of a TPU slice, or a sweep whose cells several slices share.
#
#   launch/tpu_pod.sh NAME ZONE [run] --config=fashion_mnist --workdir=/shared/large
#   launch/tpu_pod.sh NAME,NAME,... ZONE sweep --config=fashion_mnist --methods=fedavg,fedprox \
#       --out=/shared/sweep
#
# Needs gcloud, and on every host the repository in the folder ~/fedjax_lab with a virtual
# environment in .venv. The slices of a sweep have one host each, and slice I of N runs the cells of
# --share=I/N. All hosts must see the workdir, or the folder of the sweep, under the same path.
#
# A preempted slice ends this command, unless the variables CREATE and SETUP tell how to replace it:
# the options of `gcloud compute tpus tpu-vm create`, and the commands that set up its new hosts.
# Then the slice is deleted, requested every PAUSE seconds (60) until it is created, and the run or
# sweep is resumed on it.
#
#   export CREATE='--accelerator-type=v4-32 --version=tpu-ubuntu2204-base --spot'
#   export SETUP='git clone REPOSITORY fedjax_lab && cd fedjax_lab && python3 -m venv .venv &&
#       .venv/bin/pip install -e ".[tpu]"'
#
# The exit code is that of gcloud; for a sweep, that of the last slice that failed.

set -um  # m: each slice of a sweep is a process group, to which Ctrl-C is passed on
usage="usage: $0 NAME[,NAME...] ZONE [run|sweep] ARGUMENTS"
IFS=, read -ra slices <<< "${1:?$usage}"
zone=${2:?$usage}
shift 2
what=run
case ${1:-} in run | sweep) what=$1 && shift ;; esac

tpu() { # COMMAND NAME OPTIONS
    gcloud compute tpus tpu-vm "$@" --zone="$zone"
}

start() { # NAME WORKERS COMMAND ARGUMENTS: runs the command until it ends other than by preemption
    local name=$1 workers=$2 code state
    shift 2
    until tpu ssh "$name" --worker="$workers" --command \
        "cd fedjax_lab && exec .venv/bin/fedjax-lab $(printf '%q ' "$@")"; do
        code=$?
        state=$(tpu describe "$name" --format='value(state)')
        if [[ -z ${CREATE:-} || ! $state =~ ^(PREEMPTED|TERMINATED)$ ]]; then return "$code"; fi
        replace "$name"
        if [[ $what == run && $* != *--resume* ]]; then set -- "$@" --resume_or_start; fi
    done
}

replace() { # NAME: if SETUP fails, the command that is run next fails too
    echo "$1 was preempted; requesting it again" >&2
    tpu delete "$1" --quiet
    # shellcheck disable=SC2086  # $CREATE is split into options on purpose
    until tpu create "$1" $CREATE; do sleep "${PAUSE:-60}"; done
    tpu ssh "$1" --worker=all --command "${SETUP:-true}"
}

if [[ $what == run ]]; then
    start "${slices[0]}" all run --distributed=auto "$@"
    exit
fi
jobs=() code=0
for i in "${!slices[@]}"; do
    start "${slices[i]}" 0 sweep "--share=$i/${#slices[@]}" "$@" < /dev/null &
    jobs+=($!)
done
trap 'for job in "${jobs[@]}"; do kill -INT -- "-$job"; done 2> /dev/null' INT TERM HUP
for job in "${jobs[@]}"; do wait "$job" || code=$?; done
exit "$code"
