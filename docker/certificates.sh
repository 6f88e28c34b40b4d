#!/bin/sh
# Makes the certificates and keys of the compose federation in docker/certificates/. If they exist, it
# changes nothing. It needs fedapp (`make set-up` or the image); compose.yaml runs it in the image.
set -eu
folder=${1:-$(dirname "$0")/certificates}
nodes=${2:-4}
[ -e "$folder/ca.key" ] && exit 0
umask 077
exec fedapp certificates "$folder" --host superlink --nodes "$nodes"
