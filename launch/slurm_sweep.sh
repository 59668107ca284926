#!/bin/bash
#SBATCH --job-name=fedjax_lab
#SBATCH --output=slurm-%A_%a.out
#SBATCH --signal=TERM@60
# Runs a sweep as a Slurm array: each task runs its share of the cells. All hosts must see --out.
#
#   sbatch --array=0-7 --cpus-per-task=8 launch/slurm_sweep.sh \
#       --config=configs/fashion_mnist.py --methods=fedavg,fedprox --seeds=0,1,2 --out=runs/sweep
#
# Submit it from the root of the repository with the Python environment active. GPUs, time and
# partition are options of sbatch, for example --gpus-per-task=1. Number the tasks from 0. A minute
# before its time is up a task saves its state; the same command resumes unfinished cells.

set -eu
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # srun does not inherit it from sbatch
exec srun --ntasks=1 python -m fedjax_lab.sweep \
    "--share=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" "$@"
