# Targets for the quick start, the tests and the documentation; `make help` lists them.
LOCAL := $(or $(AIRFLOW_MEGATRON_LOCAL),.local)
ifeq ($(filter /%,$(LOCAL)),)
override LOCAL := $(CURDIR)/$(LOCAL)
endif
BIN := $(LOCAL)/venv-airflow/bin
export AIRFLOW_MEGATRON_LOCAL := $(LOCAL)
# Always write bytecode: without it each test process would compile Airflow and all tests again.
export PYTHONDONTWRITEBYTECODE :=
# Modules of a site set these; packages from there would replace those of the environments.
unexport PYTHONPATH PYTHONHOME

.PHONY: help quickstart test studies record install ui docs screenshots browser check fast integration soak peers distributed sites clean

help:
	@echo "make quickstart   install missing software and run a small sweep: YAML to result table"
	@echo "make install      install missing software"
	@echo "make test         install missing software and run all tests"
	@echo "make studies      run every shipped spec, reduced in size, with its trainer; needs Megatron-LM"
	@echo "make record       record which arguments a release of Megatron-LM accepts, and where the rules differ:"
	@echo "                  make record RELEASE=core_v0.18.0 CHECKOUT=DIRECTORY"
	@echo "make ui           start the cluster and Airflow, print the address of the web page"
	@echo "make browser      install Chromium for the tests of web pages"
	@echo "make docs         build the documentation site into $(LOCAL)/site"
	@echo "make screenshots  take the screenshots of the page in docs/images, after a quick start"
	@echo "make check        lint and type checks"
	@echo "make fast         run the fast tests that need no cluster"
	@echo "make integration  run the tests on the local cluster, and tests marked slow"
	@echo "make soak         run the longest tests: whole sweeps with unmodified Megatron-LM, large storms of faults"
	@echo "make sites        test profiles of real sites, each on a local Slurm cluster with the limits of the site"
	@echo "make distributed  run the tests on Airflow's distributed engine: PostgreSQL, Redis, Celery, several daemons"
	@echo "make peers        install Aim, MLflow, trackio and W&B in environments of their own, and push records to the last three"
	@echo "make clean        stop the local cluster and delete everything in $(LOCAL)"

install:
	@docker/install.sh "$(LOCAL)"

quickstart: install
	@"$(BIN)/airflow-megatron" quickstart

ui: install
	@"$(BIN)/airflow-megatron" ui

# the type checker uses one core while the fast tests start
test: install browser
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check fast
	@$(MAKE) --no-print-directory integration

browser: install
	@"$(BIN)/python" docker/local_cluster install --browser --dir "$(LOCAL)/cluster" || echo "without Chromium the tests of pages are skipped"

studies: install
	@"$(BIN)/python" tests/studies

record: install
	@"$(BIN)/python" tests/studies/record_release.py $(RELEASE) $(if $(CHECKOUT),"$(CHECKOUT)")

docs: install
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/mkdocs" build --strict --quiet --site-dir "$(LOCAL)/site"
	@echo "open $(LOCAL)/site/index.html"

screenshots: quickstart
	@"$(BIN)/python" tests/ui/live/screenshots.py

check:
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/shellcheck" $$(git ls-files '*.sh')
	"$(BIN)/mypy"
	cd docker && "$(BIN)/mypy" --strict -p local_cluster -p distributed

FAST := "$(BIN)/pytest" --timeout 600 -m "not integration and not trainer and not slow and not peers"
HALF := tests/checks tests/megatron tests/slurm tests/spec tests/trust

# two processes that import and collect half of the tests each; xdist's workers would all collect all of them
fast:
	@mkdir -p "$(LOCAL)"
	@$(FAST) $(HALF) >"$(LOCAL)/fast.log" 2>&1 & half=$$!; trap 'kill $$half' INT TERM; \
	$(FAST) tests $(HALF:%=--ignore=%) --ignore=tests/integration --ignore=tests/trainer; rest=$$?; \
	wait $$half; first=$$?; cat "$(LOCAL)/fast.log"; exit $$((first | rest))

# most of these tests wait, so five workers share two cores; tests/work_groups.py defines their order and groups;
# a test that hangs fails after 25 minutes, and the others run
integration:
	"$(BIN)/pytest" --timeout 1500 -n 5 --dist loadfile --no-loadscope-reorder -m "(integration or trainer or slow) and not long"

# whole sweeps with unmodified Megatron-LM, and large storms of faults: before a release, and each week
soak: install browser
	"$(BIN)/pytest" -n 2 --dist loadfile --no-loadscope-reorder -m long

peers: install
	@for peer in aim mlflow trackio wandb; do \
	  test -x "$(LOCAL)/peers/$$peer/bin/python" || "$(BIN)/python" -m venv "$(LOCAL)/peers/$$peer"; \
	  "$(LOCAL)/peers/$$peer/bin/pip" install -q --disable-pip-version-check -r tests/peers/$$peer.txt || exit 1; \
	done
	"$(BIN)/pytest" tests/peers

distributed: install
	@python3 docker/distributed install --venv "$(LOCAL)/venv-distributed"
	@tests/integration/faults/distributed/s3_server.sh "$(LOCAL)/venv-s3"
	"$(BIN)/pytest" -m distributed tests/integration/faults/distributed

# -s prints the start time of each imitated site; PAM checks one-time codes with pam_oath
sites: install
	@dpkg -s libpam-oath >/dev/null 2>&1 || apt-get install -qy --no-install-recommends libpam-oath
	"$(BIN)/pytest" -s -m "sites or integration" tests/integration/sites

clean:
	@test "$(LOCAL)" = "$(CURDIR)/.local" || test -d "$(LOCAL)/venv-airflow" || { echo "make install has not installed anything in $(LOCAL); nothing is deleted" >&2; exit 1; }
	-python3 docker/distributed down --purge --dir "$(LOCAL)/distributed"
	-"$(BIN)/airflow-megatron" cluster down --purge
	rm -rf "$(LOCAL)"
