#!/bin/sh
# Registers the SuperNodes' keys with the SuperLink; skips keys that an earlier start registered.
. /app/docker/connection.sh
for key in /certificates/node-*.pub; do
    said=$(flwr supernode register "$key" federation 2>&1) && continue
    case $said in
        *already*) ;;
        *) echo "$said" >&2; exit 1 ;;
    esac
done
