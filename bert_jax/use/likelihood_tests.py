"""Tests a pre-trained model by its likelihoods, on BLiMP and on blanks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.messages import Progress, UserError
from bert_jax.use import blimp, likelihood, text_inputs
from bert_jax.weights.load import OpenedModel, open_model


def run_tests(
  model_path: str,
  blimp_path: str | None,
  cloze_path: str | None,
  method: str | None = None,
  max_pairs: int | None = None,
  batch_tokens: int = 8192,
  dtype: str = "float32",
  family: str | None = None,
  tower: str | None = None,
) -> dict[str, Any]:
  """Runs one or both tests, and prints their results.

  Args:
    model_path: a path that `open_model` opens.
    blimp_path: a folder or tar file with BLiMP's .jsonl files; None leaves the
      test on BLiMP out.
    cloze_path: a .jsonl file, where each line has a "text" with one [MASK] and
      an "answer"; None leaves the test on blanks out.
    method: how BLiMP's sentences are scored; see `likelihood.score_texts`. If
      None, the model's head decides.
    max_pairs: the largest number of pairs to take from each file of BLiMP; None
      takes all pairs.
    batch_tokens: the largest number of tokens in a batch, with padding.
    dtype: the dtype of the computation.
    family: the family of a transformers folder whose config.json names no
      family.
    tower: "discriminator" or "generator" of an ELECTRA; None means the
      discriminator.

  Returns:
    A dict with the keys "model" and "method". The results of each test have the
    test's name as their key: "blimp", "cloze".

  Raises:
    UserError: a file or the model cannot be read, or they do not fit together.
      The message is one sentence.
  """
  with Progress(f"opening {model_path}"):
    model = open_model(
      model_path,
      family=family,
      tower=tower,
      default_tower="discriminator",
      dtype=dtype,
    )
  method = method or likelihood.default_method(model)
  results: dict[str, Any] = {"model": model_path, "method": method}
  if blimp_path:
    results["blimp"] = run_blimp(
      model, blimp_path, method, max_pairs, batch_tokens
    )
  if cloze_path:
    results["cloze"] = run_cloze(model, cloze_path, batch_tokens)
  # Print the results here, because the caller may fail to write them.
  _print_results(results)
  return results


def run_blimp(
  model: OpenedModel,
  path: str,
  method: str,
  max_pairs: int | None,
  batch_tokens: int,
) -> dict[str, Any]:
  """Scores both sentences of each pair; returns the dict of `blimp.accuracies`.

  Args:
    model: a model with a pre-training head.
    path: see `blimp.read`.
    method: see `likelihood.score_texts`.
    max_pairs: the largest number of pairs to take from each file; None takes
      all pairs.
    batch_tokens: the largest number of tokens in a batch, with padding.

  Raises:
    UserError: a file is damaged, or the model's scores are not finite.
  """
  files = blimp.read(path, max_pairs)
  texts = [
    text
    for file in files
    for text in (*file.good_sentences, *file.bad_sentences)
  ]
  with Progress("BLiMP", len(texts), "sentences") as progress:
    scores = likelihood.score_texts(
      model, texts, method, batch_tokens, progress.report
    )
  _check_finite(scores)
  sentence_counts = [
    len(sentences)
    for file in files
    for sentences in (file.good_sentences, file.bad_sentences)
  ]
  scores_by_list = np.split(scores, np.cumsum(sentence_counts)[:-1])
  return blimp.accuracies(files, scores_by_list[::2], scores_by_list[1::2])


def run_cloze(
  model: OpenedModel, path: str, batch_tokens: int
) -> dict[str, Any]:
  """Returns the accuracy over a file, in which each text has one `[MASK]`.

  Args:
    model: a masked language model.
    path: a .jsonl file with "text" and "answer" in each line.
    batch_tokens: the largest number of tokens in a batch, with padding.

  Raises:
    UserError: a line is wrong, the file is empty, or the model's scores are not
      finite. The message names the wrong line.
  """
  texts, answers = [], []
  for line_number, line in enumerate(text_inputs.read_lines(path), 1):
    json_object = text_inputs.parse_json_object(line, f"{path}:{line_number}")
    text, answer = json_object.get("text"), json_object.get("answer")
    if not isinstance(text, str) or text.count("[MASK]") != 1:
      raise UserError(
        f'{path}:{line_number}: the line must have a "text" with one [MASK].'
      )
    if not isinstance(answer, str) or not answer.strip():
      raise UserError(f'{path}:{line_number}: the line must have an "answer".')
    texts.append(text)
    answers.append(answer)
  if not texts:
    raise UserError(f"{path} is empty.")
  with Progress("filling blanks"):
    predictions = likelihood.predict_blanks(model, texts, answers, batch_tokens)
  # The log-probabilities of the answers that are a single piece.
  answer_log_p = [
    prediction.answer_log_p
    for prediction in predictions
    if prediction.answer_log_p is not None
  ]
  _check_finite(answer_log_p)
  return {
    "accuracy": float(
      np.mean([prediction.is_right for prediction in predictions])
    ),
    "texts": len(texts),
    "answers_of_several_pieces": len(texts) - len(answer_log_p),
    "mean_log_probability": (
      float(np.mean(answer_log_p)) if answer_log_p else None
    ),
    "guesses": [prediction.piece for prediction in predictions],
  }


def _check_finite(scores: Sequence[float] | np.ndarray) -> None:
  """Raises a UserError if a score is not finite; NaN would count as wrong."""
  if not np.isfinite(scores).all():
    raise UserError(
      "the model's scores are not finite; use a checkpoint whose parameters are"
      " finite."
    )


def _print_results(results: dict[str, Any]) -> None:
  """Prints a table for BLiMP and a line for the blanks."""
  if "blimp" in results:
    print(blimp.markdown_table(results["blimp"]))
  if "cloze" in results:
    cloze = results["cloze"]
    mean_log_p = cloze["mean_log_probability"]
    mean_text = "none" if mean_log_p is None else f"{mean_log_p:.4f}"
    print(
      f"cloze: accuracy {cloze['accuracy']:.4f} of {cloze['texts']:,} texts;"
      f" {cloze['answers_of_several_pieces']:,} answers are not a single piece;"
      f" the other answers have mean log P {mean_text}"
    )
