# Two commands set up everything: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/quickstart
BIN := $(VENV)/bin/python

.PHONY: quickstart test test-full lint clean

# `make quickstart` needs TensorFlow only for its docstrings, part of the text.
$(VENV)/installed: setup.py
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): about 2.5 GB, once"
	$(BIN) -m pip install --quiet --disable-pip-version-check -e '.[all]'
	touch $@

# Real English that is on any machine: the docstrings of what was installed.
$(RUN)/text.txt: $(VENV)/installed
	mkdir -p $(RUN)
	$(BIN) -m bert_jax.split_text --input docstrings --output $@

$(RUN)/vocab.txt: $(RUN)/text.txt
	$(BIN) -m bert_jax.train_vocab --input $< --size 4096 --output $@

$(RUN)/data/meta.json: $(RUN)/vocab.txt
	$(BIN) -m bert_jax.prepare --input $(RUN)/text.txt --vocab $< \
	  --output $(RUN)/data --heldout 0.02

quickstart: $(RUN)/data/meta.json
	$(BIN) -m bert_jax.main --config configs/quickstart.py --workdir $(RUN) \
	  --config.data.path=$(RUN)/data
	$(BIN) -m bert_jax.fill_mask --workdir $(RUN) \
	  "The function returns a new [MASK] with the same shape." \
	  "If the value is not [MASK], an error is raised." \
	  "This [MASK] is deprecated and will be removed in a future version." \
	  "A list of [MASK] to be passed to the function." \
	  "The default value is [MASK]."
	@echo
	@echo "plot of the losses: $(RUN)/loss.png"
	@echo "TensorBoard: $(VENV)/bin/tensorboard --logdir $(RUN)"
	@echo "a notebook to look inside: notebooks/predictions.ipynb"

test: $(VENV)/installed
	$(BIN) -m ruff check .
	$(BIN) -m pytest

test-full: $(VENV)/installed
	$(BIN) -m pytest -m "slow or not slow"

clean:
	rm -rf runs
