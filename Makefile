# Cerebro's commands. `make help` lists them.

SEGMENTS ?=
PG_CONFIG ?=
TESTS ?= tests
CLUSTER = scripts/cluster.py
# The environment's Python; where the servers' user cannot enter this folder, it lies elsewhere.
PYTHON = $$($(CLUSTER) python)
export PG_CONFIG

.DEFAULT_GOAL := help
.PHONY: help env env-dev build cluster cluster-admin demo psql stop clean install test soak lint bench bench-peers

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo 'SEGMENTS=4 make demo    takes four segments instead of two'

# The scripts need Debian's Python, which a bare machine may lack.
/usr/bin/python3:
	apt-get -q -y update && apt-get -q -y --no-install-recommends install python3

env: /usr/bin/python3 ## install what is missing: PostgreSQL, plpython3u, a Python environment
	@$(CLUSTER) env

env-dev: /usr/bin/python3
	@$(CLUSTER) env --dev

build: /usr/bin/python3 ## write the extension's script and control file to build/
	@scripts/build.py

cluster: env ## start the embedded cluster; the last line is the demo role's connection string
	@$(CLUSTER) start $(if $(SEGMENTS),--segments $(SEGMENTS))
	@$(CLUSTER) url

cluster-admin: env ## the same, with the superuser's connection string
	@$(CLUSTER) start $(if $(SEGMENTS),--segments $(SEGMENTS))
	@$(CLUSTER) admin-url

demo: env ## real flights on real servers: load, search 8 configurations, predict
	@$(CLUSTER) start $(if $(SEGMENTS),--segments $(SEGMENTS))
	@CEREBRO_URL="$$($(CLUSTER) url)" PYTHONPATH=. $(PYTHON) -m cerebro_udf.client.demo --psql 'make psql' $(if $(SEGMENTS),--segments $(SEGMENTS))

psql: ## open psql on the coordinator as the demo role
	@$(CLUSTER) psql

stop: ## stop the cluster; `make cluster` starts it again
	@$(CLUSTER) stop

clean: ## remove the cluster with its data, and what was built; the Python environment stays
	@$(CLUSTER) clean
	@rm -rf build .pytest_cache .hypothesis .ruff_cache

install: env build ## put extension and package into an existing server: make install PG_CONFIG=/path/to/pg_config
	@PYTHON="$(PYTHON)" scripts/install.sh $(PG_CONFIG)

lint: env-dev ## check style, Python 3.9 syntax, SQL for PostgreSQL 9.4, shell, Dockerfile
	@PYTHON="$(PYTHON)" scripts/lint.sh

test: lint build ## lint, build, and run every test; TESTS=tests/unit for some
	@$(PYTHON) -m pytest -n 2 --dist loadfile $(TESTS)

soak: env-dev build ## 200 programs in one session, 32 cancelled fits, 20 crashes, every fault, 100 more at random moments; takes half an hour
	@$(PYTHON) -m pytest tests/soak

bench: env-dev ## measure against plain Keras; results go to bench/results/
	@PYTHONPATH=. $(PYTHON) bench/run.py

bench-peers: env-dev ## measure against Optuna, KerasTuner and Ray Tune; writes docs/peers.md
	@PYTHONPATH=. $(PYTHON) bench/peers/run.py $(if $(PEERS),--home $(PEERS))
