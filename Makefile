# make demo   the whole chain on this machine, checked row by row (about a minute); make demo-kafka: into Kafka
# make test   every test, with real servers; make test-unit: seconds
# Both install what is missing: uv, Java 17, MariaDB (Debian packages where they may), a Kafka broker and a schema
# registry (jars).

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := $(UV) run --frozen --no-sync
# Tests run in one process more than there are cores: a third of their time is waiting for servers. Each process has its
# own MariaDB; one that is done takes over what another one has left (tests/support/dealing.py). WORKERS= runs them one after the
# other; PYTEST_ARGS="--cpu-report 30" tells which are dear; HYPOTHESIS_PROFILE=search tries other examples, and more.
WORKERS ?= -n auto --dist worksteal
PROTOS := $(wildcard proto/binlog/pb/*.proto)

.DEFAULT_GOAL := help
.PHONY: help site demo demo-kafka test coverage test-unit test-integration lint types contracts format proto docs bench archive sync sync-demo clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18

sync:
	@scripts/need.sh uv
	@$(UV) sync --frozen --quiet

sync-demo:
	@scripts/need.sh uv
	@$(UV) sync --frozen --quiet --inexact --no-dev --group demo

demo: sync-demo  ## run the main job: etcd, two pumps, the drainer on Spark, a shop that writes; then compare every table
	@scripts/need.sh java
	@$(RUN) python -m demo $(DEMO_ARGS)

demo-kafka: sync-demo  ## the same shop into Kafka: a broker, a schema registry, two drainers, two protocols; read back, compared
	@scripts/need.sh java kafka registry
	@$(RUN) python -m demo.kafka $(DEMO_ARGS)

test: sync  ## every test, with real etcd, MariaDB, Kafka, a schema registry and Spark
	@scripts/need.sh java mariadb kafka registry grpc-java h2spec promtool chromium systemd
	$(RUN) pytest $(WORKERS) $(PYTEST_ARGS)

coverage: sync  ## every test, and which lines ran, in child processes too; a third more CPU
	@scripts/need.sh java mariadb kafka registry grpc-java h2spec promtool chromium systemd
	$(RUN) pytest $(WORKERS) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

test-unit: sync  ## the tests that need no server: seconds
	@scripts/need.sh promtool systemd
	$(RUN) pytest tests/unit -m "not integration" -q $(PYTEST_ARGS)

test-integration: sync  ## the tests with real servers alone
	@scripts/need.sh java mariadb kafka registry grpc-java h2spec promtool chromium systemd
	$(RUN) pytest $(WORKERS) tests/integration tests/crash tests/golden $(PYTEST_ARGS)

lint: sync  ## ruff, mypy --strict, import contracts
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports

format: sync  ## ruff's formatter and fixes
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

proto: sync  ## generated modules from proto/binlog/pb/*.proto
	$(RUN) python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTOS)

docs: sync  ## docs/configuration.md from the code
	$(RUN) python scripts/write_configuration.py docs/configuration.md

site: sync  ## the documentation as a site in site/; a warning is an error
	$(RUN) mkdocs build --strict --quiet

archive: sync  ## classes of the drainer's JVM in ~/.cache, once: halves the CPU of every later start
	@scripts/need.sh java
	@$(RUN) python -m drainer.spark.startup.class_archive

bench: sync  ## all benchmarks; each prints a ratio to a ceiling or a peer measured in the same run
	@scripts/need.sh java mariadb
	$(RUN) python -m bench

clean:  ## what tests, the demo and tools leave behind
	rm -rf .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* htmlcov demo-data spark-warehouse
