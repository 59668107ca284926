#!/bin/bash
#SBATCH --job-name=fedjax_lab
#SBATCH --output=slurm-%j.out
#SBATCH --signal=TERM@60
# One run over several hosts: a process on each, one mesh over the devices of all.
#
#   sbatch --nodes=4 --ntasks-per-node=1 --cpus-per-task=32 launch/slurm_run.sh \
#       --config=configs/fashion_mnist.py --workdir=runs/large
#
# Submit it from the root of the repository with its environment active. On GPUs take a process for
# each: --ntasks-per-node=4 --gpus-per-node=4. More clients must take part in a round than
# there are devices in all processes but the last. Add --resume to go on.

set -eu
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}  # srun no longer asks sbatch
exec srun --kill-on-bad-exit=1 python -m fedjax_lab.main --distributed=auto "$@"
