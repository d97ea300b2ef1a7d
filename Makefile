# Everything builds .venv by itself. With packages installed once, nothing here needs a network.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test bench lint tmux docker redis clean
demo: .venv/.run
	$(BIN)/python bench/demo.py

test: .venv/.test lint tmux docker
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# Some tests look at a real terminal.
tmux:
	@command -v tmux >/dev/null || { \
	  echo "installing tmux"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -q && $$SUDO apt-get install -y -q --no-install-recommends tmux; }

# Some tests run containers, in a Docker engine of their own.
docker:
	@command -v dockerd >/dev/null && command -v busybox >/dev/null || { \
	  echo "installing docker.io and busybox-static"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -q && $$SUDO apt-get install -y -q --no-install-recommends docker.io busybox-static; }

lint: .venv/.test
	$(BIN)/ruff check src tests bench tools
	$(BIN)/ruff format --quiet --check src tests bench tools
	$(BIN)/mypy

bench: .venv/.test .peers/.installed redis docker
	$(BIN)/python bench/run.py

# What the benchmarks stand beside; moto has an environment of its own, because it brings many packages.
.peers/.installed:
	$(PYTHON) -m venv .peers
	.peers/bin/pip install --quiet --disable-pip-version-check 'moto[server]'
	@touch $@

redis:
	@command -v redis-server >/dev/null || { \
	  echo "installing redis-server"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -q && $$SUDO apt-get install -y -q --no-install-recommends redis-server; }

# Debian ships venv as a package of its own; install it where we may.
.venv/bin/python:
	$(PYTHON) -m venv .venv || { \
	  echo "installing python3-venv"; \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$SUDO apt-get update -q && $$SUDO apt-get install -y -q python3-venv && $(PYTHON) -m venv .venv; }

.venv/.run: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.test: .venv/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch .venv/.run $@

clean:
	rm -rf .venv .peers build .mypy_cache .ruff_cache .hypothesis
