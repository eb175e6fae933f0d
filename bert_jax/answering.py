"""Lines of JSON in, predictions of an exported model out, in their order.

  classification, regression  {"text": ..} or {"texts": [one, or two]}
  choice                      {"texts": [[one, or two] of each choice]}
  tagging                     {"words": [..]}, or {"text": ..}, cut at spaces
  span                        {"question": .., "context": ..}

An "id" is given back; other keys are not read.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from bert_jax import text_rows
from bert_jax.exported import INPUTS, Exported
from bert_jax.finetune import outputs, preparing, scoring
from bert_jax.finetune.data import Split
from bert_jax.finetune.rows import Examples, Task

# Lines that are read before the first is answered.
BLOCK = 1024


def read(path: str, task: Task) -> Iterator[dict[str, Any]]:
  """Reads examples of a task.

  Args:
    path: of a JSONL file.
    task: of the model.

  Raises:
    ValueError: a line that is none; file and line are named.
  """
  for number, line in enumerate(text_rows.read_lines(path)):
    where = f"{path}:{number + 1}"
    item = text_rows.parse_object(line, where)
    name = item.get("id", number)
    yield {"id": str(name), "name": name} | _fields(task, item, where)


def _are_texts(value: Any, least: int, most: int) -> bool:
  return (
    isinstance(value, list)
    and least <= len(value) <= most
    and all(isinstance(text, str) for text in value)
  )


def _fields(task: Task, item: dict[str, Any], where: str) -> dict[str, Any]:
  """What of a line its example has."""
  text, texts = item.get("text"), item.get("texts")
  if task.kind == "span":
    fields = {key: item.get(key) for key in ("question", "context")}
    if all(isinstance(value, str) for value in fields.values()):
      return fields | {"answers": None, "title": ""}
    raise ValueError(f'{where}: "question" and "context" must be strings.')
  if task.kind == "tagging":
    words = item.get("words", text.split() if isinstance(text, str) else None)
    if _are_texts(words, 0, len(words or ())):
      return {"words": words, "tags": None, "document": None}
    raise ValueError(f'{where}: no "words" (a list of strings), no "text".')
  if task.kind == "choice":
    right = isinstance(texts, list) and len(texts) > 1
    if right and all(_are_texts(choice, 1, 2) for choice in texts):
      return {"texts": texts, "label": None}
    raise ValueError(f'{where}: no "texts", a list of texts of each choice.')
  texts = [text] if texts is None else texts
  if _are_texts(texts, 1, 2):
    return {"texts": texts, "label": None}
  raise ValueError(f'{where}: no "text" (a string), no "texts" (one or two).')


def predict(
  model: Exported, examples: Iterable[dict[str, Any]], batch_size: int = 32
) -> Iterator[dict[str, Any]]:
  """Yields what the model says of each example, in order.

  Texts longer than the longest row are cut; words and contexts are read in
  windows.

  Args:
    model: of `exported.load`, or `exported.live`.
    examples: of `read`.
    batch_size: rows that are run together.

  Yields:
    `id`; `prediction`, a label, number, list of tags, text of the answer, or
    the number of a choice; `probabilities` of labels or choices, `probability`
    of the answer. Windows of one text are averaged.
  """
  examples = iter(examples)
  while block := list(itertools.islice(examples, BLOCK)):
    # Examples of one block have as many choices.
    same = itertools.groupby(
      block, lambda e: len(e["texts"]) if model.task.kind == "choice" else 1
    )
    for columns, some in same:
      yield from _predict(model, list(some), columns, batch_size)


def _predict(
  model: Exported, examples: Examples, columns: int, batch_size: int
) -> Iterator[dict[str, Any]]:
  task = model.task
  if task.kind == "choice":
    labels = tuple(map(str, range(columns)))
    task = task._replace(columns=columns, labels=labels)
  rows = preparing.encode_examples(
    task, examples, model.vocabulary, model.lengths[-1]
  ).rows
  split = Split("input", task, model.pad, rows, examples, model.lengths)
  logits = logits_of(model, split, batch_size)
  found = scoring.predictions(split, logits)
  scores = None
  if task.kind in ("classification", "choice"):
    values = [x for x in logits if x is not None]
    scores = jax.nn.softmax(outputs.example_logits(task, rows, values))
  for i, (example, one) in enumerate(zip(examples, found, strict=True)):
    result = {"id": example["name"], "prediction": one}
    if task.kind == "span":
      best = one["nbest"][0]["probability"]
      result |= {"prediction": one["text"], "probability": best}
    if task.kind == "choice":
      result["prediction"] = int(one)
      result["probabilities"] = np.asarray(scores[i]).tolist()
    if task.kind == "classification":
      pairs = zip(task.labels, np.asarray(scores[i]).tolist(), strict=True)
      result["probabilities"] = dict(pairs)
    yield result


def logits_of(
  model: Exported, split: Split, batch_size: int
) -> list[np.ndarray]:
  """Logits of each unit of a split: a row, or an example with its choices."""
  count = len(split.rows.example) // split.task.columns
  batches = split.batches(min(batch_size, count))
  found = []
  for step in range(batches.steps_per_epoch):
    batch = batches.batch(step)
    shape = batch["input_ids"].shape
    flat = {key: batch[key].reshape(-1, shape[-1]) for key in INPUTS}
    values = model.run(flat)
    if split.task.kind == "choice":
      values = values.reshape(shape[:2])
    found.append((batch["row"], values))
  # Fetched after all are under way.
  found = [(units, np.asarray(values)) for units, values in found]
  return scoring.logits_of_units(found, len(split.rows.example))


def write(path: str, predictions: Iterable[dict[str, Any]]) -> int:
  """Writes a line each; the number of them."""
  count = 0
  with open(path, "w", encoding="utf-8") as f:
    for one in predictions:
      f.write(json.dumps(one, ensure_ascii=False) + "\n")
      count += 1
  return count
