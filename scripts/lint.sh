#!/bin/sh
# Every lint; PYTHON is the environment's interpreter, its tools lie beside it.
set -eu
cd "$(dirname "$0")/.."
bin=$(dirname "${PYTHON:?}")

"$bin/ruff" check --quiet .
# What servers import must run on Python 3.9; client/ runs outside.
find cerebro_udf -name '*.py' -not -path '*/client/*' -exec \
    "$bin/vermin" --target=3.9- --violations --no-tips --eval-annotations --quiet {} +
"$PYTHON" scripts/lint_python.py
"$PYTHON" scripts/lint_sql.py sql/*.sql migrations/*.sql
# PS005: a function that is inlined, or that makes tables where its caller's path leads, has no path of its own.
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
"$PYTHON" scripts/build.py "$built"
"$bin/pgspot" --ignore PS005 --ignore-lang plpython3u "$built"/cerebro--*.sql >"$built/found" || { cat "$built/found"; exit 1; }
"$bin/shellcheck" scripts/*.sh .ci/run
if [ -f Dockerfile ]; then
    "$bin/hadolint" Dockerfile
fi
echo "lints passed"
