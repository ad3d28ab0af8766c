#!/bin/sh
# Start SuperNode number N of NODES with its own key, in the foreground. Its states live in FOLDER/state-N and survive it.
#   deploy/supernode.sh FOLDER N NODES [OPTION ...]      FOLDER: holds ca.crt and node-N.key
# OPTION: any option of `flower-supernode`. SUPERLINK says where the SuperLink is: 127.0.0.1:8000 unless set.
# The app finds partition-id=N and num-partitions=NODES in its node config, and what NODE_CONFIG adds ('key=1 path="x"').
# A SuperNode that ends with an error is started again, after 5 s, 10 s, ... 60 s, up to RETRIES times (20) in a row:
# the SuperLink refuses a node that it still believes to be there, which is for a minute after it was killed.
set -eu
folder=$1 node=$2 nodes=$3
shift 3
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_HOME="${FLWR_HOME:-$folder/flwr-node-$node}"

child='' pause=5 failures=0
trap 'trap "" INT TERM; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || :; wait; exit 143' INT TERM
while :; do
    began=$(date +%s) status=0
    flower-supernode --superlink "${SUPERLINK:-127.0.0.1:8000}" --root-certificates "$folder/ca.crt" \
        --auth-supernode-private-key "$folder/node-$node.key" \
        --node-config "partition-id=$node num-partitions=$nodes fedsparq-state=\"$folder/state-$node\" ${NODE_CONFIG:-}" \
        --host 127.0.0.1 --port "$((${RUNTIME_PORT:-9094} + node))" "$@" &
    child=$!
    wait "$child" || status=$?
    case $status in 0 | 2) exit "$status" ;; esac # ended in order; options that Flower does not know
    if [ "$(($(date +%s) - began))" -gt 120 ]; then pause=5 failures=0; fi
    failures=$((failures + 1))
    if [ "$failures" -gt "${RETRIES:-20}" ]; then
        echo "supernode.sh: SuperNode $node failed $failures times in a row; the last error is above" >&2
        exit "$status"
    fi
    echo "supernode.sh: SuperNode $node ended with status $status; starting it again in $pause s" >&2
    sleep "$pause" &
    child=$!
    wait "$child"
    pause=$((pause < 30 ? 2 * pause : 60))
done
