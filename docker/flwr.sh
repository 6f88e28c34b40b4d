#!/bin/sh
# Runs one of Flower's commands on the federation, for example: ls federation, or stop RUN_ID federation.
. /app/docker/connection.sh
exec flwr "$@"
