# The two commands of the README, and the pieces that they are made of.
LOCAL ?= $(or $(AIRFLOW_MEGATRON_LOCAL),$(CURDIR)/.local)
BIN := $(LOCAL)/venv-airflow/bin
export AIRFLOW_MEGATRON_LOCAL := $(LOCAL)
# Bytecode is kept, whatever the caller says: without it each process of the tests compiles Airflow and all tests anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart test studies record install ui docs screenshots browser check fast integration peers distributed sites clean

help:
	@echo "make quickstart   install what is missing and run a small sweep: YAML to result table"
	@echo "make test         install what is missing and run all tests"
	@echo "make studies      run every shipped spec, shrunk, with the trainer that it names; needs Megatron-LM"
	@echo "make record       record what a release of Megatron-LM takes, and where the rules judge otherwise:"
	@echo "                  make record RELEASE=core_v0.18.0 CHECKOUT=DIRECTORY"
	@echo "make ui           start cluster and Airflow, print the address of the web page"
	@echo "make docs         build the documentation site into $(LOCAL)/site"
	@echo "make screenshots  take the picture of the page in docs/images again, after a quick start"
	@echo "make check        lint and type checks"
	@echo "make fast         the tests that need neither a cluster nor much time"
	@echo "make integration  the tests on the local cluster, and all others that take long"
	@echo "make sites        profiles of real sites, each on a local Slurm cluster that refuses what the site refuses"
	@echo "make distributed  the tests on Airflow's distributed engine: PostgreSQL, Redis, Celery, several daemons"
	@echo "make peers        install MLflow, trackio and W&B in environments of their own, and push records to them"
	@echo "make clean        stop the local cluster and delete everything in $(LOCAL)"

install:
	@docker/install.sh $(LOCAL)

quickstart: install
	@$(BIN)/airflow-megatron quickstart

ui: install
	@$(BIN)/airflow-megatron ui

test: install browser check fast integration

browser: install
	@$(BIN)/python docker/local_cluster install --browser || echo "without Chromium the tests of pages are skipped"

studies: install
	@$(BIN)/python tests/studies

record: install
	@$(BIN)/python tests/studies/record_release.py $(RELEASE) $(CHECKOUT)

docs: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(LOCAL)/site
	@echo "open $(LOCAL)/site/index.html"

screenshots: quickstart
	@$(BIN)/python tests/ui/live/screenshots.py

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck $$(git ls-files '*.sh')
	$(BIN)/mypy
	cd docker && ../$(BIN:$(CURDIR)/%=%)/mypy --strict -p local_cluster -p distributed

# a third worker works while the tests of the others wait; what the tests of a file share is made once
fast:
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/integration --ignore=tests/trainer -m "not integration and not trainer and not slow and not peers"

# most wait while others compute, so four share two cores; tests/work_groups.py says what is begun first, and what a worker does alone
integration:
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m "integration or trainer or slow"

peers: install
	@for peer in mlflow trackio wandb; do \
	  test -x $(LOCAL)/peers/$$peer/bin/python || $(BIN)/python -m venv $(LOCAL)/peers/$$peer; \
	  $(LOCAL)/peers/$$peer/bin/pip install -q --disable-pip-version-check -r tests/peers/$$peer.txt || exit 1; \
	done
	$(BIN)/pytest tests/peers

distributed: install
	@python3 docker/distributed install --venv $(LOCAL)/venv-distributed
	@tests/integration/faults/distributed/s3_server.sh $(LOCAL)/venv-s3
	$(BIN)/pytest -m distributed tests/integration/faults/distributed

# -s prints how long the imitation of each site took to start; PAM checks one-time codes by pam_oath
sites: install
	@dpkg -s libpam-oath >/dev/null 2>&1 || apt-get install -qy --no-install-recommends libpam-oath
	$(BIN)/pytest -s -m "sites or integration" tests/integration/sites

clean:
	-python3 docker/distributed down --purge --dir $(LOCAL)/distributed
	-$(BIN)/airflow-megatron cluster down --purge
	rm -rf $(LOCAL)
