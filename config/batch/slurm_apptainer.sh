#!/bin/bash
# Ten tasks of a SLURM array, each a tenth of the images: sbatch config/batch/slurm_apptainer.sh
# Make the image once: apptainer build geoseg.sif docker-daemon://geoseg:latest
#SBATCH --job-name=geoseg-classify
#SBATCH --array=0-9
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
# For a GPU: #SBATCH --gres=gpu:1, and `apptainer run --nv` below.
set -eu

# geoseg knows the array's variables: task SLURM_ARRAY_TASK_ID of SLURM_ARRAY_TASK_COUNT.
# exec: the signal before the time limit reaches geoseg itself; requeued, --resume goes on with the blocks not done.
exec apptainer run --bind "${GEOSEG_DATA:-$PWD/data}:/data" geoseg.sif \
    classify /data/config.yaml --resume --max-memory 7GiB
