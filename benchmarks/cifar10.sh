#!/bin/sh
# The CIFAR-10 comparison of docs/evidence.md: 100 clients with 2 shards each, 10 per round, the small CNN.
#
#   benchmarks/cifar10.sh FOLDER [ROUNDS]     FOLDER holds train/CLASS/*.jpg and test/CLASS/*.jpg
#
# Interrupted, it continues with the first run that is not complete. Curves go to runs/cifar10/curves.png.
set -eu
data=${1:?"usage: benchmarks/cifar10.sh FOLDER [ROUNDS]"}
rounds=${2:-40}
common="dataset='images' data-dir='$data' num-clients=100 participation=0.1 shards=2 num-rounds=$rounds
lr-schedule='exponential' local-epochs=5 batch-size=50 eval-every=2 analyses='forgetting' output-dir='runs/cifar10'"
runs=
for pair in fedavg:0.01 fedntd:0.01 fedfn:0.01 feddr+:0.01; do
    name=${pair%:*}-lr${pair#*:}
    runs="$runs runs/cifar10/$name"
    grep -qs '"status": "completed"' "runs/cifar10/$name/summary.json" ||
        fedapp run --nodes 100 -c "$(echo "$common" | tr '\n' ' ') method='${pair%:*}' lr=${pair#*:} run-name='$name' resume='auto' checkpoint-every=5"
done
# shellcheck disable=SC2086
fedapp compare $runs --plot runs/cifar10/curves.png
