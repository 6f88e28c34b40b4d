#!/bin/sh
# Starts SuperNode number $1 of $2, with a warm worker. SUPERLINK is the SuperLink's address, NODE_CONFIG adds
# other keys.
set -eu
exec flower-supernode \
    --superlink "${SUPERLINK:-superlink:9092}" \
    --root-certificates /certificates/ca.crt \
    --auth-supernode-private-key "/certificates/node-$1" \
    --node-config "partition-id=$1 num-partitions=$2 worker=\"warm\" ${NODE_CONFIG:-}"
