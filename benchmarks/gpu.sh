#!/bin/sh
# What has to be measured on a machine with a GPU, in order of importance, also without a network.
#
#     sh benchmarks/gpu.sh [PART...]      PART: losses methods graphs bench table
#
#   losses   every loss and its gradients in float32 beside the CPU in float64
#   methods  the models of every method after one round beside those of the CPU
#   graphs   every method's models with CUDA graphs beside those without, which must be equal
#   bench    the FL tax, precisions (fp32, tf32, bf16), a paper's round, memory over 20 rounds
#   table    FedDr+'s table 3 at its length, CIFAR-100 with 10 shards: METHODS, all at once
#
# Each part ends after LIMIT seconds (570), and its output lies in OUT/PART.log (runs/gpu). A run of `table`
# that is cut off goes on in the next call. Settings, as environment variables:
#   PYTHON  the interpreter that has PyTorch (python3)
#   WHEELS  a folder of wheels, fedapp's own included, that are installed into OUT/site without a network
#   DATA    the folder with cifar-100-python/, for `table`
#   METHODS the methods of `table` ("fedavg feddr+")
#   SEEDS   its seeds (0)
#   CHANGES its changed keys ("precision='tf32' cuda-graphs=true eval-every=20")
#   MPS     1 starts NVIDIA's Multi-Process Service for the time of this script, so that the kernels
#           of several processes run side by side
#   DEVICE  cuda; with cpu the script can be tried on any machine
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} OUT=${OUT:-runs/gpu} LIMIT=${LIMIT:-570} DEVICE=${DEVICE:-cuda}
export PYTHON OUT LIMIT DEVICE
mkdir -p "$OUT"

if [ -n "${WHEELS:-}" ]; then
    [ -d "$OUT/site" ] || "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile \
        --target "$OUT/site" "$WHEELS"/*.whl
    site=$(cd "$OUT/site" && pwd)
    export PYTHONPATH="$site" PATH="$site/bin:$PATH"
fi

fedapp() {
    "$PYTHON" -c 'from fedapp.cli.app import main; main()' "$@"
}

part() {
    case $1 in
        losses | methods | graphs) "$PYTHON" benchmarks/device_agreement.py "$1" --device "$DEVICE" ;;
        bench) fedapp bench --quick --part gpu --output-dir "$OUT/bench" ;;
        table)
            methods=${METHODS:-fedavg feddr+}
            set --
            for method in $methods; do
                set -- "$@" --cell "$method cifar100 s=10"
            done
            fedapp reproduce feddr+ table3-sharding "$@" --seeds "${SEEDS:-0}" --jobs 16 \
                -c "${CHANGES:-precision='tf32' cuda-graphs=true eval-every=20}" \
                --data-dir "${DATA:?names the folder of cifar-100-python/}" --output-dir "$OUT/table"
            ;;
        *)
            echo "unknown part '$1'; there is losses, methods, graphs, bench and table" >&2
            return 2
            ;;
    esac
}

if [ "${1:-}" = --now ]; then
    part "$2"
    exit
fi

if [ "${MPS:-}" = 1 ]; then
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    nvidia-cuda-mps-control -d
    trap 'echo quit | nvidia-cuda-mps-control' EXIT
    trap 'exit 130' INT TERM
fi

failed=
for each in ${*:-losses methods graphs bench table}; do
    echo "== $each, at most $LIMIT s"
    timeout --signal=INT --kill-after=30 "$LIMIT" sh benchmarks/gpu.sh --now "$each" \
        >"$OUT/$each.log" 2>&1 || failed="$failed $each (exit status $?)"
    tail -n 60 "$OUT/$each.log"
done
[ -z "$failed" ] || {
    echo "not complete:$failed" >&2
    exit 1
}
