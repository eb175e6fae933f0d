"""Tests that folders of bilm are read, and that errors name what is wrong."""

import json
import pathlib

import numpy as np
import pytest

from bert_jax.cli.main import execute
from bert_jax.weights import bilm, model_folder

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

FULL_OPTIONS = {
  "lstm": dict(
    cell_clip=3,
    proj_clip=3,
    use_skip_connections=True,
    n_layers=2,
    projection_dim=5,
    dim=7,
  ),
  "char_cnn": dict(
    embedding={"dim": 4},
    filters=[[1, 3], [2, 6]],
    n_highway=1,
    n_characters=262,
    max_characters_per_token=50,
    activation="relu",
  ),
}
SHAPE_BY_NAME = {
  "char_embed": (261, 4),
  "CNN/W_cnn_0": (1, 1, 4, 3),
  "CNN/b_cnn_0": (3,),
  "CNN/W_cnn_1": (1, 2, 4, 6),
  "CNN/b_cnn_1": (6,),
  "CNN_high_0/W_carry": (9, 9),
  "CNN_high_0/b_carry": (9,),
  "CNN_high_0/W_transform": (9, 9),
  "CNN_high_0/b_transform": (9,),
  "CNN_proj/W_proj": (9, 5),
  "CNN_proj/b_proj": (5,),
  "softmax/W": (11, 5),
} | {
  f"RNN_{side}/RNN/MultiRNNCell/Cell{i}/LSTMCell/{name}": shape
  for side in (0, 1)
  for i in (0, 1)
  for name, shape in {"W_0": (10, 28), "B": (28,), "W_P_0": (7, 5)}.items()
}


def write_folder(path, shapes=SHAPE_BY_NAME, options=FULL_OPTIONS):
  """Writes a folder; all elements of the n-th array, counted from 1, are n."""
  path.mkdir(exist_ok=True)
  with h5py.File(path / "lm_weights.hdf5", "w") as file:
    for number, (name, shape) in enumerate(shapes.items(), 1):
      file[name] = np.full(shape, number, np.float32)
  (path / "options.json").write_text(json.dumps(options))
  return str(path)


def test_every_array_becomes_a_parameter(tmp_path):
  weights = bilm.read(write_folder(tmp_path / "in"), "elmo")
  number_by_name = {name: i for i, name in enumerate(SHAPE_BY_NAME, 1)}
  for rule in bilm.rules(weights.config["model"]):
    param = weights.arrays[rule.path]
    if rule.name_in_file == "char_embed":
      # Our table begins with an additional vector of zeros, for padding.
      assert not param[0].any()
      param = param[1:]
    assert (param == number_by_name[rule.name_in_file]).all(), rule
  assert len(weights.arrays) == len(SHAPE_BY_NAME) - 1
  assert weights.config["source"]["skipped"] == ["softmax/W"]
  model = weights.config["model"]
  assert (model["hidden"], model["cell"], model["clip"]) == (5, 7, 3.0)


def test_the_command_writes_a_folder_that_opens(tmp_path):
  output = str(tmp_path / "out")
  command = ["convert", "--family", "elmo", "--from", "bilm"]
  execute(
    [*command, "--model", write_folder(tmp_path / "in"), "--output", output]
  )
  converted = model_folder.read(output)
  source = bilm.read(str(tmp_path / "in"), "elmo")
  assert converted.config["model"] == source.config["model"]
  for path, array in source.arrays.items():
    np.testing.assert_array_equal(array, converted.arrays[path])


def test_files_that_do_not_fit_are_named(tmp_path):
  def assert_refused(message, shapes=SHAPE_BY_NAME, options=FULL_OPTIONS):
    path = write_folder(tmp_path / "bad", shapes, options)
    with pytest.raises(ValueError, match=message):
      bilm.read(path, "elmo")

  shapes_without_bias = {
    name: shape
    for name, shape in SHAPE_BY_NAME.items()
    if name != "CNN_proj/b_proj"
  }
  assert_refused("CNN_proj/b_proj is missing", shapes_without_bias)
  assert_refused(
    "extra/W belongs to no parameter", SHAPE_BY_NAME | {"extra/W": (2,)}
  )
  assert_refused(
    r"b_proj has shape \[6\]", SHAPE_BY_NAME | {"CNN_proj/b_proj": (6,)}
  )
  shapes_with_deep_kernel = SHAPE_BY_NAME | {"CNN/W_cnn_0": (2, 1, 4, 3)}
  assert_refused(r"W_cnn_0 has shape \[2, 1, 4, 3\]", shapes_with_deep_kernel)
  assert_refused(
    r"char_embed has shape \[261\]", SHAPE_BY_NAME | {"char_embed": (261,)}
  )
  path = pathlib.Path(write_folder(tmp_path / "bad"))
  with pytest.raises(ValueError, match="family=bert"):
    bilm.read(str(path), "bert")
  (path / "lm_weights.hdf5").write_bytes(b"no")
  with pytest.raises(ValueError, match="not an HDF5 file"):
    bilm.read(str(path), "elmo")
  (path / "lm_weights.hdf5").unlink()
  with pytest.raises(ValueError, match="0 files of weights"):
    bilm.read(str(path), "elmo")
  with pytest.raises(ValueError, match="there is no folder or file"):
    bilm.read(str(path / "none"), "elmo")
  write_folder(path)
  with h5py.File(path / "lm_weights.hdf5", "a") as file:
    file["softmax/b"] = [b"text"]
  with pytest.raises(ValueError, match=r"softmax/b is .*, not a float dtype"):
    bilm.read(str(path), "elmo")


@pytest.mark.parametrize(
  "section, field, setting",
  [
    ("lstm", "proj_clip", 2),
    ("lstm", "cell_clip", None),
    ("lstm", "dim", "7"),
    ("lstm", "projection_dim", -5),
    ("lstm", "use_skip_connections", 1),
    ("char_cnn", "n_highway", None),
    ("char_cnn", "n_characters", 100),
    ("char_cnn", "max_characters_per_token", 40),
    ("char_cnn", "activation", "gelu"),
    ("char_cnn", "filters", [1, 3]),
    ("char_cnn", "filters", []),
    ("char_cnn", "filters", [[51, 3]]),
  ],
)
def test_unsupported_options_are_named(section, field, setting):
  changed_options = FULL_OPTIONS | {
    section: FULL_OPTIONS[section] | {field: setting}
  }
  name = f"{section}.{field}"
  with pytest.raises(ValueError, match=f"^o.json: {name} is .*must be"):
    bilm.read_options(changed_options, "o.json")
  remaining_fields = {
    option: value
    for option, value in FULL_OPTIONS[section].items()
    if option != field
  }
  with pytest.raises(ValueError, match=f"^o.json has no {name};"):
    bilm.read_options(FULL_OPTIONS | {section: remaining_fields}, "o.json")
  with pytest.raises(ValueError, match="dropout is 2"):
    bilm.read_options(FULL_OPTIONS | {"dropout": 2}, "o.json")
