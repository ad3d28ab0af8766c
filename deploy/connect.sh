#!/bin/sh
# Name the SuperLink "federation" in Flower's configuration, and register the SuperNodes' public keys with it.
#   deploy/connect.sh FOLDER          where `flwr run` will be called; the SuperLink must be up. Again for new keys.
set -eu
folder=$(cd "$1" && pwd)
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
export FLWR_HOME="${FLWR_HOME:-$folder/flwr}"
mkdir -p "$FLWR_HOME"
cat >"$FLWR_HOME/config.toml" <<EOF
[superlink]
default = "federation"

[superlink.federation]
address = "${SUPERLINK:-127.0.0.1:8000}"
root-certificates = "$folder/ca.crt"
EOF
for key in "$folder"/node-*.key.pub; do
    said=$(flwr supernode register "$key" federation 2>&1) || case $said in
        *"already in use"*) said="${key##*/} is registered already" ;;
        *) echo "$said" >&2 && exit 1 ;;
    esac
    echo "$said"
done
