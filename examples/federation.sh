#!/bin/sh
# Train on a real federation on this machine, without Docker: a SuperLink and two SuperNodes, with TLS and keys.
#
#     . .venv/bin/activate
#     sh examples/federation.sh /tmp/federation
#     CONFIG="method='fedavg' num-rounds=30" PORT=7000 sh examples/federation.sh /tmp/another
#
# The commands are those of docs/deployment.md. Keys, logs and runs are stored in the given folder, nothing in
# ~/.flwr. PORT (8000) and the ones that follow it must be free. Everything stops when the training ends.
set -eu
: "${1:?name a folder for the keys, logs and runs, for example /tmp/federation}"
app=$(cd "$(dirname "$0")/.." && pwd)
port=${PORT:-8000} nodes=2
mkdir -p "$1" && cd "$1" && mkdir -p superlink you && folder=$PWD
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1

[ -e certificates ] || fedapp certificates certificates --host localhost --nodes "$nodes"

# The SuperNodes stop first, because they sign off at the SuperLink; after 20 seconds they are killed.
supernodes='' superlink='' training=''
stop() {
    kill $training 2>/dev/null || true
    if [ -n "$supernodes" ]; then
        kill $supernodes 2>/dev/null || true
        { trap 'kill $!' TERM; sleep 20 & wait $! && kill -KILL $supernodes; } 2>/dev/null &
        wait $supernodes || true
        kill $! 2>/dev/null || true
    fi
    kill $superlink 2>/dev/null || true
    wait
    pkill -f "flwr-serverapp .*127.0.0.1:$port " 2>/dev/null || true # of a training that was stopped
}
trap stop EXIT
trap 'exit 1' INT TERM

# Up to Flower 1.39 SuperNodes use a second port, by gRPC; later ones share the first, by HTTPS.
case $(flwr --version) in
    *1.39.*) fleet=$((port + 1)) second="--fleet-api-address 127.0.0.1:$fleet" ;;
    *) fleet=$port second='' ;;
esac

FLWR_HOME=$folder/superlink flower-superlink --ssl-ca-certfile certificates/ca.crt \
    --ssl-certfile certificates/superlink.crt --ssl-keyfile certificates/superlink.key --enable-supernode-auth \
    --host 127.0.0.1 --port "$port" $second --database superlink/state.db \
    --disable-runtime-dependency-installation >superlink/log 2>&1 &
superlink=$!

# What the machine that starts runs has: its connection, and the right to register keys.
export FLWR_HOME="$folder/you"
printf '[superlink.federation]\naddress = "127.0.0.1:%s"\nroot-certificates = "%s"\n' \
    "$port" "$folder/certificates/ca.crt" >you/config.toml
until flwr supernode list federation >you/log 2>&1; do
    kill -0 "$superlink" 2>/dev/null || { tail -n 5 superlink/log; exit 1; }
    sleep 1
done

node=0
while [ "$node" -lt "$nodes" ]; do
    mkdir -p "node-$node"
    [ -e "node-$node/registered" ] || flwr supernode register "certificates/node-$node.pub" federation
    touch "node-$node/registered"
    FLWR_HOME=$folder/node-$node FEDAPP_STATE=$folder/node-$node/clients flower-supernode \
        --superlink "localhost:$fleet" --root-certificates certificates/ca.crt \
        --auth-supernode-private-key "certificates/node-$node" --port $((port + 2 + node)) \
        --node-config "partition-id=$node num-partitions=$nodes worker='warm'" >"node-$node/log" 2>&1 &
    supernodes="$supernodes $!" node=$((node + 1))
done

# In the background, because a shell obeys signals only between the commands that it waits for.
flwr run "$app" federation --stream -c "num-clients=$nodes shards=5 num-rounds=10 output-dir='$folder/runs'" \
    -c "${CONFIG:-seed=0}" &
training=$!
wait "$training"

# `flwr run` does not say by its exit code whether the run was completed.
find runs -name summary.json -newer you/config.toml -exec grep -q '"status": "completed"' {} \; -print | grep -q . ||
    { echo 'the training was not completed: see its report in runs/' >&2; exit 1; }
