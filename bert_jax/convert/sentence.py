"""How a sentence-transformers folder makes one vector of a text.

`modules.json` lists its modules, and a pooling has a folder with a config.json
(UKPLab/sentence-transformers models/Pooling.py).
"""

import os
from collections.abc import Mapping
from typing import Any

from bert_jax.convert import folder
from bert_jax.data import files

MODULES, POOLING = "modules.json", "1_Pooling"
# Field of an older config -> the name that newer ones have.
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
    path: a folder of sentence-transformers, or any other.

  Returns:
    {"modes": names of poolings, side by side in the vector, "normalize":
    whether vectors are divided by their length, "others": names of modules that
    are not computed here}; None for a folder that has no pooling.

  Raises:
    ValueError: a damaged file.
  """
  place, normalize, others = POOLING, False, []
  where = os.path.join(path, MODULES)
  if os.path.isfile(where):
    try:
      modules = files.read_json(where)
    except ValueError as e:
      raise ValueError(f"{where} is damaged ({e}).") from e
    for module in modules if isinstance(modules, list) else [modules]:
      if not isinstance(module, Mapping) or not isinstance(
        module.get("type"), str
      ):
        raise ValueError(f"{where} is damaged: {module!r:.60} names no type.")
      kind = module["type"].rpartition(".")[2]
      if kind == "Pooling":
        place = str(module.get("path", place))
      elif kind == "Normalize":
        normalize = True
      elif kind not in ("Transformer", "Dropout"):
        others.append(str(module.get("path") or kind))
  # A path in somebody else's file must not lead out of the folder.
  if os.path.basename(place) != place:
    raise ValueError(f"{where}: {place!r} is no folder of this one.")
  where = os.path.join(path, place, folder.CONFIG)
  if not os.path.isfile(where):
    return None
  config = folder.read_json(where)
  modes = config.get("pooling_mode")
  if modes is None:
    modes = [name for field, name in _MODES.items() if config.get(field)]
  if isinstance(modes, str):
    modes = [modes]
  if not isinstance(modes, list) or not modes:
    raise ValueError(f"{where} is damaged: it names no pooling.")
  modes = [_MODES.get(mode, str(mode)) for mode in modes]
  return {"modes": modes, "normalize": normalize, "others": others}
