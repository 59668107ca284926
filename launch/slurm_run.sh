#!/bin/bash
#SBATCH --job-name=fedjax_lab
#SBATCH --output=slurm-%j.out
#SBATCH --signal=TERM@60
# Makes one run over several hosts: one process on each, and one mesh over the devices of all hosts.
#
#   sbatch --nodes=4 --ntasks-per-node=1 --cpus-per-task=32 launch/slurm_run.sh \
#       --config=configs/fashion_mnist.py --workdir=runs/large
#
# Submit it from the root of the repository with the Python environment active. For GPUs use one
# process for each: --ntasks-per-node=4 --gpus-per-node=4. A minute before its time is up the run
# saves its state; add --resume to resume it. With --resume_or_start the same command starts and
# resumes it, also if Slurm requeues the job.

set -eu
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # srun does not inherit it from sbatch
exec srun --kill-on-bad-exit=1 python -m fedjax_lab.main --distributed=auto "$@"
