#!/bin/sh
# Put the built extension and the Python package into an existing server.
#     scripts/install.sh [PG_CONFIG] [TARGET]
# TARGET: a folder for the package and what it needs (default: SHAREDIR/../cerebro-python beside the server).
set -eu
cd "$(dirname "$0")/.."
pg_config=${1:-$(command -v pg_config)}
share=$("$pg_config" --sharedir)
target=${2:-${TARGET:-$share/cerebro-python}}

install -d "$share/extension" "$target"
install -m 644 build/cerebro.control build/cerebro--*.sql "$share/extension/"
echo "extension: $share/extension"

# The interpreter that plpython3u links: Debian's own unless SERVER_PYTHON says otherwise.
python=${SERVER_PYTHON:-/usr/bin/python3}
umask 022
"$python" -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target "$target" \
    -r requirements.txt
"$python" -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target "$target" .
echo "package:   $target"
cat <<END

The server must see the package. Add this line to the environment of the server's postmaster
(Debian: /etc/postgresql/VERSION/CLUSTER/environment), restart it, and run CREATE EXTENSION:

    PYTHONPATH = '$target'

    CREATE EXTENSION cerebro CASCADE;
END
