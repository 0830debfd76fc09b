#!/bin/sh
# A container's main process: run the demo, keep the servers up, stop them in order at the end.
set -eu
cd "$(dirname "$0")/.."
trap 'make stop; exit 0' INT TERM
make demo
echo "The servers stay up: docker compose exec demo make psql"
while :; do
    sleep 86400 &
    wait $!
done
