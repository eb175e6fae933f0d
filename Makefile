# Two commands set up everything: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/quickstart
BIN := $(VENV)/bin/python
# The number of processes that share the tests; each needs up to 6 GB.
WORKERS ?= 2
TEST := PYTHONPATH=$(abspath $(VENV))/libtpu JAX_PLATFORMS=cpu $(BIN) -m pytest \
  -n $(WORKERS) --dist loadscope
# The version that the installed jax names in its extra `tpu`.
LIBTPU := "from importlib.metadata import requires as r; \
  print(*(x.split(';')[0] for x in r('jax') if x.startswith('libtpu')))"

# `make dist` runs this with the installed wheel: the wheel must have the same
# configs as the checkout.
CHECK_WHEEL := "import importlib.util, pathlib, bert_jax; \
  spec = importlib.util.find_spec('bert_jax.configs'); \
  names = lambda folder: {p.name for p in pathlib.Path(folder).glob('*.py')}; \
  assert names(spec.submodule_search_locations[0]) == names('../configs'); \
  assert 'site-packages' in spec.origin, spec.origin; \
  print('wheel of', bert_jax.__version__, 'holds', spec.origin)"

.PHONY: quickstart test test-full docs-commands lint dist clean

# `make quickstart` needs TensorFlow only for its docstrings, which are a part
# of the text.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 2.5 GB, once"
	$(BIN) -m pip install --quiet --disable-pip-version-check -e '.[all]'
	touch $@

# The text is real English that is on any machine: the docstrings of the
# installed packages.
$(RUN)/text.txt: $(VENV)/installed
	mkdir -p $(RUN)
	rm -f $@
	$(BIN) -m bert_jax split-text --input docstrings --output $@

$(RUN)/vocab.txt: $(RUN)/text.txt
	rm -f $@ $(RUN)/tokenizer_config.json $(RUN)/vocab.tokenizer_config.json
	$(BIN) -m bert_jax vocab --input $< --size 4096 --output $@

$(RUN)/data/meta.json: $(RUN)/vocab.txt
	$(BIN) -m bert_jax prepare --input $(RUN)/text.txt --vocab $< \
	  --output $(RUN)/data --heldout 0.02

quickstart: $(RUN)/data/meta.json
	$(BIN) -m bert_jax train --config configs/quickstart.py --workdir $(RUN) \
	  --config.data.path=$(RUN)/data
	$(BIN) -m bert_jax fill-mask --model $(RUN) \
	  "The function returns a new [MASK] with the same shape." \
	  "If the value is not [MASK], an error is raised." \
	  "This [MASK] is deprecated and will be removed in a future version." \
	  "The default value is [MASK]." \
	  "Returns a [MASK] of the input array."
	@echo
	@echo "your own sentence: $(VENV)/bin/bert_jax fill-mask --model $(RUN)" \
	  "'This [MASK] is ignored.'"
	@echo "plot of the losses: $(RUN)/loss.png"
	@echo "TensorBoard: $(VENV)/bin/tensorboard --logdir $(RUN)"
	@echo "a notebook to look inside: notebooks/predictions.ipynb"

# The TPU's compiler is installed beside the environment, not in it. Otherwise
# jax would look for a TPU in every command.
$(VENV)/tested: $(VENV)/installed
	@echo "installing what the tests compare with: about 2 GB, once"
	$(BIN) -m pip install --quiet --disable-pip-version-check -e '.[all,test]'
	$(BIN) -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target $(VENV)/libtpu "$$($(BIN) -c $(LIBTPU))"
	touch $@

# `.pre-commit-config.yaml` runs the same three programs before each commit.
lint: $(VENV)/tested
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy

test: lint
	$(TEST)

test-full: $(VENV)/tested
	$(TEST) -m "slow or not slow"

# Runs every command that README and docs print, at a small size.
docs-commands: $(VENV)/tested
	PYTHONPATH=$(abspath $(VENV))/libtpu $(BIN) tests/docs_commands.py

# Builds and checks the sdist and the wheel of a release (CONTRIBUTING.md).
dist:
	rm -rf dist build
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check \
	  build twine
	build/tools/bin/python -m build
	build/tools/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps dist/*.whl
	cd build && installed/bin/python -c $(CHECK_WHEEL)

clean:
	rm -rf runs dist build
