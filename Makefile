# Everything builds .venv by itself. With packages installed once, nothing here needs a network.
PYTHON ?= python3
BIN := .venv/bin
CDK := examples/cdk-gpu-service/node_modules
AXE := tests/console/node_modules
# Without compiled modules each of the many processes that tests start would compile all of Corral again.
unexport PYTHONDONTWRITEBYTECODE

# More test processes than cores, because many tests wait for tasks and timers.
JOBS ?= 6

.PHONY: demo test suite check check-rules check-others bench picture redraw lint test-packages bench-packages constraints clean
demo: .venv/.run .venv/.aws
	$(BIN)/python bench/demo.py

# mypy uses one core, so the suite starts at the same time.
test: test-packages .venv/.test $(CDK)/.installed $(AXE)/.installed
	@$(MAKE) --no-print-directory -j lint suite

# Many processes start at once: without the first line each of them would compile the same modules.
suite: .venv/.test
	@$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --durations 10

# The inner loop: lint, and the tests that need neither a server nor an engine, at the same time.
check: .venv/.test
	@$(MAKE) --no-print-directory -j lint check-rules check-others

FEW := CORRAL_EXAMPLES=1 CORRAL_SIM_SEEDS=10
check-rules: .venv/.test
	$(FEW) $(BIN)/python -m pytest -n 0 tests/wire tests/decide tests/queues tests/blobs

check-others: .venv/.test
	$(FEW) $(BIN)/python -m pytest -n 0 tests/store \
	  tests/simulation/test_simulation.py::test_nothing_bad_happens_and_everything_ends \
	  $(filter-out tests/test_docs.py tests/test_ec2_requests.py tests/test_configuration.py,$(wildcard tests/test_*.py))

# Debian packages, which are installed with apt-get where they are missing.
test-packages:
	@PYTHON=$(PYTHON) tools/packages.sh test python3-venv tmux docker.io busybox-static nodejs npm prometheus openmpi-bin iproute2 slurm-wlm chromium

# The CDK of the example, in the versions of its lock file. Tests deploy with it.
$(CDK)/.installed: examples/cdk-gpu-service/package-lock.json
	npm ci --prefix examples/cdk-gpu-service --silent --no-audit --no-fund --ignore-scripts
	@touch $@

# The accessibility check of the console's pages, in the version of its lock file.
$(AXE)/.installed: tests/console/package-lock.json
	npm ci --prefix tests/console --silent --no-audit --no-fund --ignore-scripts
	@touch $@

bench-packages:
	@PYTHON=$(PYTHON) tools/packages.sh bench python3-venv docker.io busybox-static redis-server slurm-wlm

lint: .venv/.test
	$(BIN)/ruff check src tests bench tools
	$(BIN)/ruff format --quiet --check src tests bench tools
	$(BIN)/mypy

bench: bench-packages .venv/.test .peers/.installed
	$(BIN)/python bench/run.py

# The pictures of the screens, from a new recording. It takes four minutes. Run it on an idle machine.
picture: .venv/.run
	$(BIN)/python bench/picture.py

# The same from the saved recording, after a change of a screen.
redraw: .venv/.run
	$(BIN)/python bench/picture.py --redraw

# The peers of the benchmarks. They have a separate environment, because Corral does not need them.
.peers/.installed:
	$(PYTHON) -m venv .peers
	.peers/bin/pip install --quiet --disable-pip-version-check 'moto[server]' uvicorn uvloop httptools
	@touch $@

.venv/bin/python:
	@PYTHON=$(PYTHON) tools/packages.sh $(or $(firstword $(MAKECMDGOALS)),demo) python3-venv
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.test: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch .venv/.run $@

# A new release of a dependency must not break the suite on its own day, so the suite uses fixed versions. This target writes the
# newest versions to the list, and the next minor version of botocore as the upper bound of boto3 and botocore to pyproject.toml. Run
# the suite before you commit them.
constraints:
	$(PYTHON) -m venv .venv-newest
	sed -i -E 's/"(boto3|botocore)(>=[0-9.]+),<[0-9.]+"/"\1\2"/' pyproject.toml
	.venv-newest/bin/pip install --quiet --disable-pip-version-check -e '.[test]'
	sed -n '1p' constraints.txt > .venv-newest/list && .venv-newest/bin/pip freeze --exclude-editable >> .venv-newest/list
	mv .venv-newest/list constraints.txt && rm -rf .venv-newest
	bound=$$(sed -n -E 's/^botocore==([0-9]+)\.([0-9]+)\..*/echo \1.$$((\2 + 1))/p' constraints.txt | sh) && \
	  sed -i -E "s/\"(boto3|botocore)(>=[0-9.]+)\"/\"\1\2,<$$bound\"/" pyproject.toml

# The demonstration uses the aws command. A machine without one gets version 1 in .venv.
.venv/.aws: .venv/.run
	PATH=$(BIN):$$PATH aws --version >/dev/null 2>&1 || $(BIN)/pip install --quiet --disable-pip-version-check awscli
	@touch $@

clean:
	rm -rf .venv .peers $(CDK) $(AXE) build .mypy_cache .ruff_cache .hypothesis
