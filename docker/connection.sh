# Sourced by register.sh, run.sh and flwr.sh: writes Flower's connection "federation" to the SuperLink at SUPERLINK_CONTROL.
set -eu
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "federation"
[superlink.federation]
address = "${SUPERLINK_CONTROL:-superlink:8000}"
root-certificates = "/certificates/ca.crt"
END
