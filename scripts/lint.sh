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
"$bin/shellcheck" scripts/*.sh .ci/run
if [ -f Dockerfile ]; then
    "$bin/hadolint" Dockerfile
fi
echo "lints passed"
