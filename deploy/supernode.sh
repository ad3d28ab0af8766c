#!/bin/sh
# Start SuperNode number N with its own key, in the foreground. Its states live in FOLDER/state-N and survive it.
#   deploy/supernode.sh FOLDER N      FOLDER: holds ca.crt and node-N.key
# SUPERLINK says where the SuperLink is: 127.0.0.1:8000 unless set.
set -eu
folder=$1 node=$2
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_HOME="${FLWR_HOME:-$folder/flwr-node-$node}"
exec flower-supernode --superlink "${SUPERLINK:-127.0.0.1:8000}" --root-certificates "$folder/ca.crt" \
    --auth-supernode-private-key "$folder/node-$node.key" \
    --node-config "partition-id=$node fedsparq-state=\"$folder/state-$node\"" \
    --host 127.0.0.1 --port "$((${RUNTIME_PORT:-9094} + node))"
