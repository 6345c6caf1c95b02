# make demo         runs the complete chain on this machine and compares row by row (about a minute)
# make demo-kafka   the same into Kafka
# make demo-lake    the same into a lake of Delta tables
# make test         runs the tests that a change would most likely break, with real servers
# make test-all     runs every test; make test-rest those that make test leaves out
# make test-unit    runs the tests without servers (seconds)
# They install what is missing: uv, Java 17 and MariaDB (as Debian packages, if permitted), a Kafka broker, a schema
# registry and Delta (as jars).

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := $(UV) run --frozen --no-sync
# The tests run in two processes for each core, because half of their time is waiting for servers (tests/conftest.py).
# Each process has its own MariaDB. A process that has finished takes tests of another one (tests/support/dealing.py).
# WORKERS= runs the tests one after another. PYTEST_ARGS="--cpu-report 30" lists the tests that use most CPU.
# HYPOTHESIS_PROFILE=search tries other examples, and more of them.
WORKERS ?= -n auto --dist worksteal
# Without quick tests there is nothing to even out with: each file stays with the servers of one process, and those that
# may take longest begin (tests/support/dealing.py).
WORKERS_BY_FILE ?= -n auto --dist loadfile --no-loadscope-reorder
# The others are ten times as many, and each process would read them.
SLOW_FILES = $$(grep -rlE 'mark\.slow|desk_test\(' tests --include='test_*.py')
PROTOS := $(wildcard proto/binlog/pb/*.proto)

.DEFAULT_GOAL := help
.PHONY: help site demo demo-kafka demo-lake test test-all test-rest coverage test-unit test-integration lint types contracts format proto docs bench archive sync sync-demo clean

help:  ## print this list
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

demo-kafka: sync-demo  ## the same shop into Kafka: a broker, a schema registry, two drainers, two protocols; then read back and compare
	@scripts/need.sh java kafka registry
	@$(RUN) python -m demo.kafka $(DEMO_ARGS)

demo-lake: sync-demo  ## the same shop into a lake of Delta tables; then read them and a JOIN of two back and compare
	@scripts/need.sh java delta
	@$(RUN) python -m demo.lake $(DEMO_ARGS)

test: sync  ## run the tests that a change would most likely break, with real etcd, MariaDB, Kafka, a schema registry and Spark
	@scripts/need.sh java mariadb kafka registry
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(RUN) pytest $(WORKERS) -m "not slow" $(PYTEST_ARGS)

test-all: sync  ## run every test; PEER_BIN names a folder with TiDB and the original's programs, if there is one
	@scripts/need.sh java mariadb kafka registry kafka-connect grpc-java delta s3a h2spec promtool chromium systemd
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(RUN) pytest $(WORKERS) $(PYTEST_ARGS)

test-rest: sync  ## run the tests that `make test` leaves out
	@scripts/need.sh java mariadb kafka registry kafka-connect grpc-java delta s3a h2spec promtool chromium systemd
	$(RUN) pytest $(WORKERS_BY_FILE) -m slow $(SLOW_FILES) $(PYTEST_ARGS)

coverage: sync  ## run every test and report which lines ran, also in child processes; takes a third more CPU
	@scripts/need.sh java mariadb kafka registry kafka-connect grpc-java delta s3a h2spec promtool chromium systemd
	$(RUN) pytest $(WORKERS) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

test-unit: sync  ## run the tests that need no server; takes seconds
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(RUN) pytest tests/unit -m "not integration and not slow" -q $(PYTEST_ARGS)

test-integration: sync  ## run only the tests with real servers
	@scripts/need.sh java mariadb kafka registry kafka-connect grpc-java delta s3a h2spec promtool chromium systemd
	$(RUN) pytest $(WORKERS) tests/integration tests/crash tests/golden $(PYTEST_ARGS)

lint: sync  ## run ruff, mypy --strict and the import contracts
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) lint-imports

format: sync  ## format the code and apply ruff's fixes
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

proto: sync  ## generate the modules of proto/binlog/pb/*.proto
	$(RUN) python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto $(PROTOS)

docs: sync  ## generate docs/configuration.md, the table in docs/compatibility.md and the values in docs/versions.md
	$(RUN) python scripts/write_configuration.py docs
	$(RUN) python scripts/write_versions.py docs

site: sync  ## build the documentation as a site in site/; a warning is an error
	$(RUN) mkdocs build --strict --quiet

archive: sync  ## make the archive of the drainer's JVM classes in ~/.cache; halves the CPU of every later start
	@scripts/need.sh java
	@$(RUN) python -m drainer.spark.startup.class_archive

bench: sync  ## run all benchmarks; each prints a ratio to a ceiling or a peer measured in the same run
	@scripts/need.sh java mariadb
	$(RUN) python -m bench

clean:  ## remove the files that tests, the demo and tools leave behind
	rm -rf .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* htmlcov demo-data spark-warehouse
