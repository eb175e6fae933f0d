"""Reads a checkpoint of a training run as a converted model."""

from typing import Any

import jax
from etils import epath

from bert_jax import files, models
from bert_jax.messages import DamagedFile, UserError
from bert_jax.models import elmo, from_config, heads, task_heads, tinybert
from bert_jax.weights import checkpoint, hf_config, model_folder
from bert_jax.weights.model_folder import Weights

# The objectives whose models can be exported. A model has the parameters of the
# family's ForPreTraining, unless its objective is in `ENCODER_OBJECTIVES`, is
# "finetune" or is "tinybert_task".
EXPORTABLE_OBJECTIVES = (
  *("mlm", "electra", "lm", "elmo", "distil", "tinybert"),
  *("finetune", "tinybert_task"),
)
# For these objectives, only the encoder is converted, because only training
# needs their heads.
ENCODER_OBJECTIVES = ("elmo", "tinybert")


def is_run(path: str) -> bool:
  """Returns True if `path` is the folder of a run with a checkpoint.

  Args:
    path: a folder, or RUN@best or RUN@STEP.
  """
  folder, _ = checkpoint.split_path(path)
  return (epath.Path(folder) / "checkpoints").is_dir()


def head_entries(objective: dict[str, Any], family: str) -> dict[str, Any]:
  """Returns the entries of a folder's config for a fine-tuned run's head.

  Args:
    objective: the section `objective` of the run's config.json.
    family: a key of `models.FAMILIES`.
  """
  kind, labels = objective["kind"], list(objective["labels"])
  head_dropout = objective.get("head_dropout")
  span_head = objective.get("span_head", "apart")
  pooling = models.family(family).POOLING
  entries = {
    "task": task_heads.TASK_BY_KIND[kind],
    "head": task_heads.head_options(
      kind, pooling, len(labels), head_dropout, span_head
    ),
  }
  if kind == "regression":
    # Name the only output as transformers does.
    labels = hf_config.default_labels(1)
  sequence_kinds = ("classification", "multi_label", "regression")
  if kind in (*sequence_kinds, "tagging"):
    entries |= {"labels": labels}
  if kind in sequence_kinds:
    entries |= {"problem": kind}
  return entries


def _training_only_shapes(
  run_config: dict[str, Any], objective_name: str, encoder: Any
) -> dict[str, Any]:
  """Returns a tree of the shapes of the parameters that only training uses."""
  objective = run_config["objective"]
  shapes: dict[str, Any] = {}
  if objective.get("span_boundary"):
    shapes |= {"span": heads.span_shapes(encoder)}
  if objective_name == "elmo":
    shapes |= elmo.softmax_shapes(encoder)
  if objective_name == "tinybert":
    teacher_width = run_config["teacher"]["model"]["hidden"]
    maps = objective.get("maps", tinybert.MAPS[0])
    shapes |= tinybert.map_shapes(encoder, teacher_width, maps)
  return shapes


def read(path: str, best: bool = False) -> Weights:
  """Reads all parameters of a run's checkpoint, and its tokenizer.

  Args:
    path: the folder of the run, for its newest checkpoint; RUN@best, for its
      best checkpoint; or RUN@STEP, for the checkpoint of a step. The run may
      still be training.
    best: if True, reads the best checkpoint instead of the newest, as
      RUN@best does.

  Raises:
    UserError: `path` is not a run, the checkpoint does not exist, or a model of
      the run's objective cannot be exported.
  """
  path, checkpoint_name = checkpoint.split_path(path)
  if best and checkpoint_name not in (None, checkpoint.BEST):
    raise UserError(
      f"{path}@{checkpoint_name}: name a step or the best one, not both."
    )
  checkpoint_name = checkpoint.BEST if best else checkpoint_name
  with checkpoint.Checkpointer.for_reading(path) as checkpointer:
    run_config = files.read_json_object(str(epath.Path(path) / "config.json"))
    try:
      objective, model = run_config["objective"], dict(run_config["model"])
      objective_name, family = (
        objective["name"],
        models.family(model.pop("family")),
      )
      encoder = family.build(**model)
    except (KeyError, TypeError) as e:
      raise DamagedFile(f"{path}/config.json is damaged ({e}).") from e
    if objective_name not in EXPORTABLE_OBJECTIVES:
      raise UserError(
        f"{path}: the objective is {objective_name!r}; only models of these"
        f" objectives can be exported: {', '.join(EXPORTABLE_OBJECTIVES)}."
      )
    head = {key: flag for key, flag in objective.items() if key == "pairs"}
    # TinyBERT on a task has two stages. The model of the first stage is like
    # that of the objective "tinybert"; the model of the second is like that of
    # "finetune".
    if objective_name == "tinybert_task":
      objective_by_stage = {"layers": "tinybert", "prediction": "finetune"}
      objective_name = objective_by_stage[objective.get("stage", "layers")]
    if family.OBJECTIVE == "mlm" and objective_name not in (
      "mlm",
      *ENCODER_OBJECTIVES,
    ):
      # If the config lacks the option `pairs`, only "mlm" trains the head for
      # pairs.
      head.setdefault("pairs", False)
    step = checkpointer.find_step(checkpoint_name)
    config = model_folder.make_config(
      run_config["model"]["family"],
      "encoder" if objective_name in ENCODER_OBJECTIVES else "pretraining",
      from_config.model_attributes(encoder),
      head=head,
      source={"format": "run", "dtype": "float32"},
    )
    if objective_name == "finetune":
      config |= head_entries(objective, config["family"])
    shapes = from_config.param_shapes(config)
    abstract_params = model_folder.unflatten(
      {
        parameter_path: jax.ShapeDtypeStruct(shape, "float32")
        for parameter_path, shape in shapes.items()
      }
    )
    abstract_params |= _training_only_shapes(
      run_config, objective_name, encoder
    )
    params, step = checkpointer.restore_params(step, abstract_params)
    if objective_name == "finetune":
      config["source"] |= {
        "fine_tuned": checkpointer.read_metadata(step)["task"]
      }
  config["source"] |= {"step": step}
  remaining_arrays = model_folder.flatten(jax.device_get(params))
  if "pair/dense/kernel" in shapes:
    config["source"] |= {"pair_name": objective.get("pair_name", "nsp")}
  ordered_arrays = {name: remaining_arrays.pop(name) for name in shapes}
  return Weights(
    config,
    ordered_arrays,
    model_folder.read_tokenizer_files(path),
    remaining_arrays,
  )
