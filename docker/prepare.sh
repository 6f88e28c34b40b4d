#!/bin/sh
# Makes the certificates once and copies to each host's folder the files that this host needs, without the
# secrets of other hosts. Runs as root in its own container, before the other services start.
set -eu
all=/certificates/all
/app/docker/certificates.sh "$all"
deal() { # deal ROLE FILE...
    folder=/certificates/$1
    shift
    install -d -m 700 -o fedapp "$folder"
    for file in "$@"; do
        install -m 600 -o fedapp "$all/$file" "$folder/"
    done
}
deal superlink ca.crt superlink.crt superlink.key
deal operator ca.crt $(cd "$all" && ls node-*.pub)
for public in "$all"/node-*.pub; do
    node=$(basename "$public" .pub)
    deal "$node" ca.crt "$node"
done
chown fedapp /runs
