"""Finds which class of transformers wrote a file, and the head's task."""

from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.messages import UserError, by_caller
from bert_jax.weights import hf_names
from bert_jax.weights.mapping import Rule

# Ending of a class's name -> task.
_TASK_BY_ENDING = {
  "Model": "encoder",
  "ForPreTraining": "pretraining",
  "ForMaskedLM": "pretraining",
  "ForSequenceClassification": "sequence_classification",
  "ForTokenClassification": "token_classification",
  "ForQuestionAnswering": "span",
  "ForMultipleChoice": "multiple_choice",
}


# Family -> the name of an array in its encoder. With the family's prefix, this
# name identifies the family. For the families in `_IDENTIFIED_WITHOUT_PREFIX`,
# the name identifies the family even without the prefix.
_IDENTIFYING_ARRAYS = dict.fromkeys(
  ("bert", "roberta", "electra"), "encoder.layer.0.attention.self.query.weight"
)
_IDENTIFYING_ARRAYS |= {
  "albert": "encoder.embedding_hidden_mapping_in.weight",
  "distilbert": "transformer.layer.0.attention.q_lin.weight",
  "gpt": "h.0.attn.c_attn.weight",
}
_IDENTIFIED_WITHOUT_PREFIX = ("albert", "distilbert", "gpt")


def family_has_pair_head(family: str) -> bool:
  """Returns True if transformers has the family with a head for pairs."""
  return family in ("bert", "tinybert", "albert")


def task_by_class(family: str) -> dict[str, str]:
  """Returns class of transformers -> task, for all supported classes."""
  naming = hf_names.NAMINGS[family]
  if family == "gpt":
    class_endings = ("Model", "ForSequenceClassification")
    task_by_ending = {
      ending: _TASK_BY_ENDING[ending] for ending in class_endings
    }
    task_by_ending |= {
      "LMHeadModel": "pretraining",
      "DoubleHeadsModel": "multiple_choice",
    }
  else:
    task_by_ending = dict(_TASK_BY_ENDING)
    if family == "electra":
      task_by_ending |= {
        "ForPreTraining": "discriminator",
        "ForMaskedLM": "generator",
      }
    elif not family_has_pair_head(family):
      del task_by_ending["ForPreTraining"]
    if family in ("bert", "tinybert"):
      task_by_ending["ForNextSentencePrediction"] = "next_sentence"
      # LMHeadModel has the same parameters as ForMaskedLM. The config says
      # whether the model is a decoder.
      task_by_ending["LMHeadModel"] = "pretraining"
    if family in ("roberta", "electra"):
      task_by_ending["ForCausalLM"] = task_by_ending["ForMaskedLM"]
  prefixes = [
    naming.class_prefix,
    *(class_prefix for class_prefix, _ in naming.models_with_same_names),
  ]
  return {
    prefix + ending: task
    for prefix in prefixes
    for ending, task in task_by_ending.items()
  }


def model_types(family: str) -> tuple[str, ...]:
  """Returns the values of `model_type` in config.json of a family's models."""
  naming = hf_names.NAMINGS[family]
  return (
    naming.model_type,
    *(model_type for _, model_type in naming.models_with_same_names),
  )


def class_of(family: str, task: str, has_pair_head: bool = False) -> str:
  """Returns the class of transformers for a task.

  Args:
    family: a key of `hf_names.NAMINGS`.
    task: a task of `models.from_config.build`.
    has_pair_head: True if a model of "pretraining" has a head for pairs.

  Raises:
    UserError: transformers has no class for the task.
  """
  classes = [
    class_name
    for class_name, class_task in task_by_class(family).items()
    if class_task == task
  ]
  if task == "pretraining":
    ending = "ForPreTraining" if has_pair_head else "ForMaskedLM"
    ending = "LMHeadModel" if family == "gpt" else ending
    classes = [
      class_name for class_name in classes if class_name.endswith(ending)
    ]
  if not classes:
    head = f"{task} with a head for pairs" if has_pair_head else task
    raise UserError(f"transformers has no class for {family} with {head}.")
  return classes[0]


# Users of the command get this part of a message; it names the flag.
_FAMILY_FLAG = ", or --family=NAME to a command"


class UnknownFamily(UserError):
  """An error: the files of a model do not name the model's family."""


def family_from_config(config: Mapping[str, Any], source: str) -> str:
  """Returns the family that a config.json names, or raises UnknownFamily."""
  model_type, architectures = (
    config.get("model_type"),
    config.get("architectures"),
  )
  class_names = architectures if isinstance(architectures, list) else []
  for family in hf_names.NAMINGS:
    # This is a list, because a damaged config may hold a name that cannot be
    # hashed.
    family_classes = [*task_by_class(family)]
    if model_type in model_types(family) or any(
      name in family_classes for name in class_names
    ):
      return family
  raise UnknownFamily(
    f"{source}: model_type is {model_type!r}, architectures {architectures}."
    " They name"
    f" none of these families: {', '.join(hf_names.NAMINGS)}. If the model is"
    f" one of them, pass family=NAME{by_caller(_FAMILY_FLAG, '')}."
  )


def family_from_arrays(array_names: Collection[str]) -> str | None:
  """Finds a model's family from its arrays, if config.json does not name it.

  Args:
    array_names: the names of the arrays.

  Returns:
    The family; None unless the names fit exactly one family. For example, an
    encoder without a prefix has the same names in BERT and in RoBERTa.
  """
  matching_families = []
  for family, identifying_array in _IDENTIFYING_ARRAYS.items():
    prefix = hf_names.NAMINGS[family].prefix
    candidate_names = [prefix + identifying_array]
    if family in _IDENTIFIED_WITHOUT_PREFIX:
      candidate_names.append(identifying_array)
    if any(name in array_names for name in candidate_names):
      matching_families.append(family)
  return matching_families[0] if len(matching_families) == 1 else None


def file_has_pair_head(family: str, array_names: Collection[str]) -> bool:
  """Returns True if an array of a head for pairs is in `array_names`."""
  if not family_has_pair_head(family):
    return False
  rules = hf_names.head_rules(
    family, task="pretraining", prefix="", has_pair_head=True
  )
  return any(
    rule.name_in_file in array_names
    for rule in rules
    if rule.path.startswith("pair/")
  )


def rules_of(config: Mapping[str, Any], prefix: str) -> list[Rule]:
  """Returns the rules for all parameters of a converted folder's config.

  Args:
    config: the config of a converted folder; for ELECTRA, of a folder with a
      single tower.
    prefix: the prefix of the encoder's arrays; "" for a file without a head.
  """
  family, task = config["family"], config["task"]
  has_pair_head = config["head"].get("pairs", False)
  rules = hf_names.encoder_rules(family, config["model"], prefix)
  rules += hf_names.head_rules(family, task, prefix, has_pair_head)
  if config["pooler"] and not _reads_pooler(rules):
    rules += hf_names.pooler_rules(family, prefix)
  return rules


def _reads_pooler(rules: list[Rule]) -> bool:
  return any(rule.path.startswith("pooler/") for rule in rules)


def has_pooler(
  family: str,
  task: str,
  prefix: str,
  has_pair_head: bool,
  array_names: Collection[str],
) -> bool:
  """Returns True if a file has a pooler that its task's head does not read."""
  if _reads_pooler(hf_names.head_rules(family, task, prefix, has_pair_head)):
    return False
  rules = hf_names.pooler_rules(family, prefix)
  return any(rule.name_in_file in array_names for rule in rules)


def encoder_prefix(family: str, array_names: Collection[str]) -> str:
  """Returns the prefix of the encoder's arrays; "" if they have no prefix."""
  prefix = hf_names.NAMINGS[family].prefix
  return (
    prefix
    if any(array_name.startswith(prefix) for array_name in array_names)
    else ""
  )


def guess_task(family: str, array_names: Collection[str]) -> list[str]:
  """Returns each task whose head has exactly the arrays of a file's head.

  Arrays of the encoder and of the pooler do not count.

  Args:
    family: a key of `hf_names.NAMINGS`.
    array_names: the names of all arrays in the file.
  """
  prefix = encoder_prefix(family, array_names)
  pooler_names = {
    rule.name_in_file for rule in hf_names.pooler_rules(family, prefix)
  }
  head_names_by_task = {
    task: {
      rule.name_in_file for rule in hf_names.head_rules(family, task, prefix)
    }
    - pooler_names
    for task in sorted(set(task_by_class(family).values()))
  }
  # Without this copy of the word table, the file holds only GPT-1's encoder.
  if family == "gpt" and "lm_head.weight" not in array_names:
    del head_names_by_task["pretraining"]
  head_names = set().union(*head_names_by_task.values())
  file_head_names = {
    array_name for array_name in array_names if array_name in head_names
  }
  # A model with only a head for pairs has the task "next_sentence". If it also
  # has a masked-LM head, its task is pre-training: ignore the head for pairs.
  if file_head_names - (
    pair_names := head_names_by_task.get("next_sentence", set())
  ):
    file_head_names -= pair_names
  fitting_tasks = [
    task
    for task, task_head_names in head_names_by_task.items()
    if task_head_names == file_head_names
  ]
  # The head of GPT-1's language model is tied to the word table, so it has no
  # rules, and the task "encoder" fits too.
  if family == "gpt" and "pretraining" in fitting_tasks:
    return ["pretraining"]
  return fitting_tasks


def skipped_patterns(family: str, task: str, prefix: str) -> tuple[str, ...]:
  """Returns patterns of the names of arrays in a file that are not read.

  A RoBERTa classifier does not use the pooler, since its head has a dense
  layer. Older versions of transformers saved the pooler nevertheless.

  Args:
    family: a key of `hf_names.NAMINGS`.
    task: the task of the file's head.
    prefix: the prefix of the encoder's arrays.
  """
  patterns = (
    *hf_names.NAMINGS[family].skipped_patterns,
    *hf_names.NAMINGS[family].tied_arrays,
  )
  if family == "roberta" and task == "sequence_classification":
    patterns += (f"{prefix}pooler.dense.*",)
  return patterns
