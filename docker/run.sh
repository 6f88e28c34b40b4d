#!/bin/sh
# Starts one run on the federation and prints its log until it ends; CONFIG has its run-config keys.
. /app/docker/connection.sh
flwr run /app federation --stream -c "num-clients=4 shards=5 output-dir='/runs'" -c "${CONFIG:-num-rounds=10}"
flwr ls federation
