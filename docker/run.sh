#!/bin/sh
# Starts one training on the federation and follows it to its end; CONFIG holds its keys.
. /app/docker/connection.sh
flwr run /app federation --stream -c "num-clients=4 shards=5 output-dir='/runs'" -c "${CONFIG:-num-rounds=10}"
flwr ls federation
