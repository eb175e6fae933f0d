"""Which class of transformers a file is of, and which task that is."""

from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.convert import hf_names
from bert_jax.convert.mapping import Rule

_CLASSES = {
  "Model": "encoder",
  "ForPreTraining": "pretraining",
  "ForMaskedLM": "pretraining",
  "ForSequenceClassification": "sequence_classification",
  "ForTokenClassification": "token_classification",
  "ForQuestionAnswering": "span",
  "ForMultipleChoice": "multiple_choice",
}


def has_pair_head(family: str) -> bool:
  """Whether there is a class with a head for pairs of segments."""
  return family in ("bert", "tinybert", "albert")


def tasks_of(family: str) -> dict[str, str]:
  """Class of transformers -> task, for the classes that are known here."""
  begin = hf_names.NAMINGS[family].classes
  if family == "gpt":
    ends = ("Model", "ForSequenceClassification")
    known = {end: _CLASSES[end] for end in ends}
    known |= {
      "LMHeadModel": "pretraining",
      "DoubleHeadsModel": "multiple_choice",
    }
  else:
    known = dict(_CLASSES)
    if family == "electra":
      known |= {"ForPreTraining": "discriminator", "ForMaskedLM": "generator"}
    elif not has_pair_head(family):
      del known["ForPreTraining"]
  return {begin + end: task for end, task in known.items()}


def class_of(family: str, task: str, pairs: bool = False) -> str:
  """The class of transformers for a task; ValueError if there is none."""
  classes = [c for c, t in tasks_of(family).items() if t == task]
  if task == "pretraining":
    pick = "ForPreTraining" if pairs else ("ForMaskedLM", "LMHeadModel")
    classes = [c for c in classes if c.endswith(pick)]
  if not classes:
    what = f"{task} with a head for pairs" if pairs else task
    raise ValueError(f"transformers has no class for {family} with {what}.")
  return classes[0]


class UnknownFamily(ValueError):
  """The files of a model do not say which family it is of."""


def family_of(config: Mapping[str, Any], where: str) -> str:
  """The family that a config.json names; UnknownFamily if it names none."""
  kind, named = config.get("model_type"), config.get("architectures")
  classes = named if isinstance(named, list) else []
  for family, naming in hf_names.NAMINGS.items():
    known = [*tasks_of(family)]
    if kind == naming.model_type or any(name in known for name in classes):
      return family
  raise UnknownFamily(
    f"{where}: model_type is {kind!r}, architectures {named}; of these families"
    f" it is none: {', '.join(hf_names.NAMINGS)}; if it is one, pass family="
    " (--family=NAME of a command)."
  )


def has_pairs(family: str, keys: Collection[str]) -> bool:
  """Whether there are arrays of a head for pairs among these names."""
  if not has_pair_head(family):
    return False
  rules = hf_names.head_rules(family, "pretraining", "", pairs=True)
  return any(r.theirs in keys for r in rules if r.ours.startswith("pair/"))


def rules_of(config: Mapping[str, Any], prefix: str) -> list[Rule]:
  """Rules of all parameters of a folder's config.

  Args:
    config: of a folder, of one tower if it is ELECTRA's.
    prefix: the naming's, or "" for a file of an encoder alone.
  """
  family, task = config["family"], config["task"]
  pairs = config["head"].get("pairs", False)
  rules = hf_names.encoder_rules(family, config["model"], prefix)
  rules += hf_names.head_rules(family, task, prefix, pairs)
  if config["pooler"] and not _reads_pooler(rules):
    rules += hf_names.pooler_rules(family, prefix)
  return rules


def _reads_pooler(rules: list[Rule]) -> bool:
  return any(rule.ours.startswith("pooler/") for rule in rules)


def has_pooler(
  family: str, task: str, prefix: str, pairs: bool, keys: Collection[str]
) -> bool:
  """Whether a file has a pooler that the head of its task does not read."""
  if _reads_pooler(hf_names.head_rules(family, task, prefix, pairs)):
    return False
  rules = hf_names.pooler_rules(family, prefix)
  return any(rule.theirs in keys for rule in rules)


def prefix_of(family: str, keys: Collection[str]) -> str:
  """The prefix that encoder arrays have among these names, maybe none."""
  prefix = hf_names.NAMINGS[family].prefix
  return prefix if any(key.startswith(prefix) for key in keys) else ""


def guess_task(family: str, keys: Collection[str]) -> list[str]:
  """Tasks whose heads a file of these names may be of."""
  prefix = prefix_of(family, keys)
  pooler = {rule.theirs for rule in hf_names.pooler_rules(family, prefix)}
  heads = {
    task: {rule.theirs for rule in hf_names.head_rules(family, task, prefix)}
    - pooler
    for task in sorted(set(tasks_of(family).values()))
  }
  if family == "gpt" and "lm_head.weight" not in keys:
    del heads["pretraining"]
  known = set().union(*heads.values())
  there = {key for key in keys if key in known}
  fits = [task for task, names in heads.items() if names == there]
  # Tied, GPT-1's language model has no array of its own.
  if family == "gpt" and "pretraining" in fits:
    return ["pretraining"]
  return fits


def skipped_of(family: str, task: str, prefix: str) -> tuple[str, ...]:
  """Patterns of names that a file of this task may have and that are dropped.

  A RoBERTa classifier has a dense layer of its own; files of older versions
  hold the unused pooler as well.
  """
  patterns = (*hf_names.NAMINGS[family].skipped, *hf_names.NAMINGS[family].tied)
  if family == "roberta" and task == "sequence_classification":
    patterns += (f"{prefix}pooler.dense.*",)
  return patterns
