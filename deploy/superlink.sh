#!/bin/sh
# Start a SuperLink with TLS that knows only registered SuperNodes, in the foreground.
#   deploy/superlink.sh FOLDER [OPTION ...]      FOLDER: what deploy/keys.sh made, on this machine
# OPTION: any option of `flower-superlink`. HOST and PORT say where it listens: 127.0.0.1:8000 unless set. For nodes
# elsewhere: HOST=0.0.0.0. Apps run with what is installed here; with FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=0
# Flower installs an app's own dependencies for each run.
set -eu
folder=$1
shift
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="${FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION:-1}"
export FLWR_HOME="${FLWR_HOME:-$folder/flwr}"
exec flower-superlink --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
    --ssl-ca-certfile "$folder/ca.crt" --ssl-certfile "$folder/superlink.crt" --ssl-keyfile "$folder/superlink.key" \
    --enable-supernode-auth --database "$folder/superlink.db" "$@"
