#!/bin/sh
# All methods with a model per client on the built-in digits: 20 clients, Dirichlet 0.1, two small architectures.
#
#   benchmarks/heterogeneous.sh [ROUNDS] [KEYS]     KEYS such as "num-clients=40 participation=0.5"
#
# Every client has a node of its own, so that bytes are counted as on real hosts. Interrupted, it continues with
# the first run that is not complete. The table and accuracy against MB go to runs/heterogeneous/.
set -eu
rounds=${1:-20}
common="dataset='digits' partition='dirichlet' alpha=0.1 num-clients=20 model-group='tiny' num-rounds=$rounds
output-dir='runs/heterogeneous' ${2:-}"
runs=
for method in feddor feddor-no-oi feddor-no-dor fedproto fedtgp fedorgp fedgh fedgen fedkd lg-fedavg fd fml local-hetero; do
    runs="$runs runs/heterogeneous/$method"
    grep -qs '"status": "completed"' "runs/heterogeneous/$method/summary.json" ||
        fedapp run --in-process --nodes 20 -c "$(echo "$common" | tr '\n' ' ') method='$method' run-name='$method'"
done
# shellcheck disable=SC2086
fedapp traffic $runs --plot runs/heterogeneous/traffic.png
