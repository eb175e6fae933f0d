"""Reads how a sentence-transformers folder makes one vector of a text.

`modules.json` lists the modules of the model. The pooling module has its own
folder with a config.json (UKPLab/sentence-transformers models/Pooling.py).
"""

import os
from collections.abc import Mapping
from typing import Any

from bert_jax import files
from bert_jax.messages import Damaged, UserError
from bert_jax.weights import model_folder

MODULES, POOLING = "modules.json", "1_Pooling"
# Field of an older config -> the name of the pooling in newer configs.
_MODES = {
  "pooling_mode_cls_token": "cls",
  "pooling_mode_mean_tokens": "mean",
  "pooling_mode_max_tokens": "max",
  "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
  "pooling_mode_weightedmean_tokens": "weightedmean",
  "pooling_mode_lasttoken": "lasttoken",
}


def read(path: str) -> dict[str, Any] | None:
  """Reads how a folder's vectors are made.

  Args:
    path: a sentence-transformers folder, or any other folder.

  Returns:
    None for a folder without a pooling; otherwise a dict with these entries.
    "modes": names of poolings, whose results are concatenated to the vector.
    "normalize": True if vectors are divided by their length.
    "others": names of modules that are not computed here.

  Raises:
    ValueError: a file is damaged.
  """
  pooling_folder, normalize, others = POOLING, False, []
  modules_path = os.path.join(path, MODULES)
  if os.path.isfile(modules_path):
    try:
      modules = files.read_json(modules_path)
    except ValueError as e:
      raise Damaged(f"{modules_path} is damaged ({e}).") from e
    for module in modules if isinstance(modules, list) else [modules]:
      if not isinstance(module, Mapping) or not isinstance(
        module.get("type"), str
      ):
        raise Damaged(
          f"{modules_path} is damaged: {module!r:.60} names no type."
        )
      kind = module["type"].rpartition(".")[2]
      if kind == "Pooling":
        pooling_folder = str(module.get("path", pooling_folder))
      elif kind == "Normalize":
        normalize = True
      elif kind not in ("Transformer", "Dropout"):
        others.append(str(module.get("path") or kind))
  # The file may come from a stranger, so its path must stay inside the folder.
  if os.path.basename(pooling_folder) != pooling_folder:
    raise UserError(
      f"{modules_path}: {pooling_folder!r} is not the name of a folder in it."
    )
  config_path = os.path.join(path, pooling_folder, model_folder.CONFIG)
  if not os.path.isfile(config_path):
    return None
  config = model_folder.read_json(config_path)
  modes = config.get("pooling_mode")
  if modes is None:
    modes = [name for field, name in _MODES.items() if config.get(field)]
  if isinstance(modes, str):
    modes = [modes]
  if not isinstance(modes, list) or not modes:
    raise Damaged(f"{config_path} is damaged: it names no pooling.")
  modes = [_MODES.get(mode, str(mode)) for mode in modes]
  return {"modes": modes, "normalize": normalize, "others": others}
