#!/usr/bin/env bash
# Runs an image's environment with Apptainer, closed against the user's home and shell.
#
#   apptainer build sglang-infer.sif docker-daemon:sglang-infer:latest
#   docker/examples/apptainer/run.sh sglang-infer.sif check
#   docker/examples/apptainer/run.sh sglang-infer.sif infer --model-path /models/target --port 30000
#   docker/examples/apptainer/run.sh sglang-train.sif train python train.py
#
# WORK is mounted at /workspace, MODELS at /models and SAMPLES at /samples, the last two read-only.
set -euo pipefail

if [[ $# -lt 2 || ($2 != check && $2 != train && $2 != infer) ]]; then
  echo "run.sh: usage: run.sh IMAGE.sif check|train|infer [COMMAND | OPTIONS ...]" >&2
  exit 2
fi
image=$1 role=$2
shift 2
[[ -f $image ]] || { echo "run.sh: there is no image $image; make it with: apptainer build $image docker-daemon:NAME:TAG" >&2; exit 2; }

# Apptainer mounts $HOME, the working directory and /tmp and hands every variable on unless told not to. --containall with --no-home
# leaves out the first three, so that ~/.local's packages are not on the path; --cleanenv the variables (PYTHONPATH, LD_LIBRARY_PATH).
# What a site's apptainer.conf mounts besides is left out by name.
options=(exec --containall --no-home --cleanenv --no-mount "home,cwd,bind-paths" --writable-tmpfs --pwd /workspace
  --env HOME=/tmp --bind "${WORK:-$PWD}:/workspace")
[[ -z ${MODELS:-} ]] || options+=(--bind "$MODELS:/models:ro")
[[ -z ${SAMPLES:-} ]] || options+=(--bind "$SAMPLES:/samples:ro")
if [[ -e /dev/nvidiactl ]]; then options+=(--nv); fi

case $role in
  check) exec apptainer "${options[@]}" "$image" /opt/tools/bin/envspec diff --no-spec --lock /etc/envspec/requirements.lock local ;;
  *) exec apptainer "${options[@]}" "$image" /opt/tools/bin/enter "$role" "$@" ;;
esac
