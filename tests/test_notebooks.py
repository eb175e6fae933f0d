"""Tests that every notebook runs from top to bottom on a tiny run."""

import json
import pathlib

import matplotlib
import numpy as np
import pytest
from prepared import random_documents, write_prepared
from tiny_runs import BERT, shrink_config

from bert_jax.cli import configs
from bert_jax.training import train

pytestmark = pytest.mark.usefixtures("compilation_cache", "fast_compilation")

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOK_PATHS = sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOK_PATHS, ids=lambda path: path.name)
def test_a_notebook_runs_and_is_saved_without_outputs(
  path, tmp_path, monkeypatch
):
  folder = write_prepared(
    tmp_path / "data", random_documents(60, seed=0), random_documents(9, seed=1)
  )
  config = shrink_config(configs.load_defaults(BERT), folder)
  config["phases"] = {"phase1": config["phases"]["phase1"] | {"fraction": 1.0}}
  train.run(config, str(tmp_path / "run"))
  monkeypatch.setenv("WORKDIR", str(tmp_path / "run"))
  matplotlib.use("agg")
  cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
  namespace: dict = {}
  for cell in cells:
    if cell["cell_type"] == "code":
      assert not cell["outputs"], "commit notebooks without outputs"
      exec(compile("".join(cell["source"]), path, "exec"), namespace)
  # The last section shows the attention weights, which sum to one for each
  # query of each head.
  np.testing.assert_allclose(namespace["attention"].sum(-1), 1.0, rtol=1e-5)
