#!/bin/sh
# Start a SuperLink with TLS that knows only registered SuperNodes, in the foreground.
#   deploy/superlink.sh FOLDER        FOLDER: what deploy/keys.sh made, on this machine
# HOST and PORT say where it listens: 127.0.0.1:8000 unless set. For nodes elsewhere: HOST=0.0.0.0
set -eu
folder=$1
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_HOME="${FLWR_HOME:-$folder/flwr}"
exec flower-superlink --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
    --ssl-ca-certfile "$folder/ca.crt" --ssl-certfile "$folder/superlink.crt" --ssl-keyfile "$folder/superlink.key" \
    --enable-supernode-auth --database "$folder/superlink.db" --disable-runtime-dependency-installation
