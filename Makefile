# The two commands of the README, and the pieces that they are made of.
LOCAL ?= $(or $(AIRFLOW_MEGATRON_LOCAL),$(CURDIR)/.local)
BIN := $(LOCAL)/venv-airflow/bin
export AIRFLOW_MEGATRON_LOCAL := $(LOCAL)
# Bytecode is kept, whatever the caller says: without it each process of the tests compiles Airflow and all tests anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart test studies record install ui check fast integration clean

help:
	@echo "make quickstart   install what is missing and run a small sweep: YAML to result table"
	@echo "make test         install what is missing and run all tests"
	@echo "make studies      run every shipped spec, shrunk, with the trainer that it names; needs Megatron-LM"
	@echo "make record       record what a release of Megatron-LM takes, and where the rules judge otherwise:"
	@echo "                  make record RELEASE=core_v0.18.0 CHECKOUT=DIRECTORY"
	@echo "make ui           start cluster and Airflow, print the address of the web page"
	@echo "make check        lint and type checks"
	@echo "make fast         the tests that need neither a cluster nor much time"
	@echo "make integration  the tests on the local cluster, and all others that take long"
	@echo "make clean        stop the local cluster and delete everything in $(LOCAL)"

install:
	@docker/install.sh $(LOCAL)

quickstart: install
	@$(BIN)/airflow-megatron quickstart

ui: install
	@$(BIN)/airflow-megatron ui

test: install check fast integration

studies: install
	@$(BIN)/python tests/studies

record: install
	@$(BIN)/python tests/studies/record_release.py $(RELEASE) $(CHECKOUT)

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd docker && ../$(BIN:$(CURDIR)/%=%)/mypy --strict -p local_cluster

# these compute more than they wait: a worker for each core; what the tests of a file share is made once
fast:
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/integration --ignore=tests/trainer -m "not integration and not trainer and not slow"

# some wait while others compute; tests/work_groups.py says what is begun first, and what a worker does alone
integration:
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "integration or trainer or slow"

clean:
	-$(BIN)/airflow-megatron cluster down --purge
	rm -rf $(LOCAL)
