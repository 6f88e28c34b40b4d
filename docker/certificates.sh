#!/bin/sh
# Makes the certificates and keys of the compose federation in docker/certificates/all/. If they exist, it
# changes nothing. It needs fedapp (`make set-up` or the image); compose.yaml runs it in the image.
set -eu
folder=${1:-$(dirname "$0")/certificates/all}
nodes=${2:-4}
[ -e "$folder/node-$((nodes - 1)).pub" ] && exit 0 # the last file that is made
if [ -e "$folder/ca.key" ]; then
    echo "$folder is incomplete (no node-$((nodes - 1)).pub): remove it, and start again" >&2
    exit 1
fi
umask 077
exec fedapp certificates "$folder" --host superlink --nodes "$nodes"
