#!/bin/sh
# Put the built extension and the Python package into an existing server.
#     scripts/install.sh [PG_CONFIG]
# PYTHON: an interpreter with pip of the version that plpython3u links (make passes the environment's).
# TARGET: a folder for the package and what it needs (default: cerebro-python in the server's share folder).
set -eu
cd "$(dirname "$0")/.."
pg_config=${1:-$(command -v pg_config)}
share=$("$pg_config" --sharedir)
target=${TARGET:-$share/cerebro-python}
umask 022

install -d "$share/extension" "$target"
install -m 644 build/cerebro.control build/cerebro--*.sql "$share/extension/"
echo "extension: $share/extension"

# From a copy: a build inside this folder would leave its files in build/.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R cerebro_udf pyproject.toml README.md LICENSE "$copy/"
pip="${PYTHON:-/usr/bin/python3} -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --use-pep517"
$pip --target "$target" --requirement requirements.txt
$pip --target "$target" "$copy"
cat <<END
package:   $target

The server must see the package. Add this line to the environment of its postmaster
(Debian: /etc/postgresql/VERSION/CLUSTER/environment), and restart it:

    PYTHONPATH = '$target'

Then, in each database on every node, as superuser:

    CREATE EXTENSION cerebro CASCADE;
END
