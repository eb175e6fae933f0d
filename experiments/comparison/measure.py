r"""Measures one trained system; `compare.py` runs this program.

  python experiments/comparison/measure.py heldout --model RUN --data DATA \\
    --output FILE
  python experiments/comparison/measure.py blimp --model RUN --blimp TAR \\
    --pairs 1000 --output FILE
  python experiments/comparison/measure.py speed --model RUN --output FILE
  python experiments/comparison/measure.py pack --model RUN --output FOLDER

heldout: the masked-LM loss on rows that are the same for every system, full
sentences of 128 tokens with 15% of the tokens hidden one by one. For ELECTRA,
this is the generator's loss.
blimp: the share of BLiMP's pairs in which the good sentence is more likely.
GPT-1 reads a sentence without special tokens, as in training. ELMo's score is
the sum of both directions' log-probabilities of all words.
speed: rows of 128 tokens a second through the encoder, in bfloat16.
pack: writes the weights in float16, in files of at most 15.5 million bytes.
"""

import argparse
import functools
import io
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import files
from bert_jax.examples import loader
from bert_jax.models import elmo
from bert_jax.use import (
  blimp,
  features,
  fill_mask,
  likelihood,
  likelihood_tests,
  row_batches,
  text_inputs,
)
from bert_jax.weights import model_folder
from bert_jax.weights.load import OpenedModel, open_model

# The number of tokens in a row, and the number of held-out rows to score.
LENGTH, NUM_ROWS = 128, 2048
COMMON_ROWS = dict(
  builder="full_sentences",
  length=LENGTH,
  max_predictions=20,
  replacement="bert",
  count="round",
)
# The id of <UNK>.
UNKNOWN_WORD_ID = 2
# `pack` writes files of at most this number of bytes.
PART_BYTES = 15_500_000


def masked_loss(model: OpenedModel, data: str, batch_size: int) -> float:
  """Returns the mean loss in nats over the hidden tokens of the common rows.

  Args:
    model: a model with a masked-LM head.
    data: the prepared folder.
    batch_size: the number of rows of a batch.
  """
  heldout = loader.open_heldout(data, limit=NUM_ROWS, **COMMON_ROWS)

  @jax.jit
  def loss(params, inputs, positions, targets, weights):
    log_p = fill_mask.log_probabilities(model.module, params, inputs, positions)
    log_p_of_targets = jnp.take_along_axis(log_p, targets[..., None], 2)[..., 0]
    return -(log_p_of_targets * weights).sum(), weights.sum()

  sums = np.zeros(2)
  for start in range(0, len(heldout), batch_size):
    batch = heldout.read(start, batch_size)
    sums += jax.device_get(
      loss(
        model.params,
        {key: batch[key] for key in ("input_ids", "sequence_ids")},
        *(batch[f"mlm_{key}"] for key in ("positions", "ids", "weights")),
      )
    )
  return float(sums[0] / sums[1])


def measure_heldout(args: argparse.Namespace) -> dict[str, Any]:
  model = open_model(args.model, default_tower="generator", dtype="float32")
  return {"mlm_loss": masked_loss(model, args.data, batch_size=64)}


@functools.partial(jax.jit, static_argnums=0)
def words_log_p(module, params, inputs, targets, is_word):
  """Returns the log-probability of each row's words, [rows].

  It is the sum over all words and both directions.
  """
  outputs: Any = module.apply({"params": params}, inputs)
  # The logits at a word predict the word after it, or the word before it.
  log_p = {name: jax.nn.log_softmax(logits) for name, logits in outputs.items()}
  forward = jnp.take_along_axis(
    log_p["next_logits"][:, :-2], targets[:, 1:-1, None], -1
  )
  backward = jnp.take_along_axis(
    log_p["previous_logits"][:, 2:], targets[:, 1:-1, None], -1
  )
  both = (forward + backward)[..., 0]
  return jnp.where(is_word[:, 1:-1], both, 0).sum(-1)


def score_with_elmo(
  model: OpenedModel, texts: list[str], batch_tokens: int
) -> np.ndarray:
  """Returns the score of each text, float64 [N].

  A word that is not in the vocabulary counts as `<UNK>`, but its characters are
  read.
  """
  # An opened ELMo has no softmax, because it is used for its features.
  module = elmo.ForPreTraining(model.module.encoder)
  softmax = model_folder.unflatten(dict(model.weights.training_arrays))
  params = model.params | jax.tree.map(jnp.asarray, softmax)
  id_by_word = {word: i for i, word in enumerate(model.vocabulary.pieces)}
  encoded = text_inputs.encode(
    model,
    [text_inputs.text_of_string(i, text) for i, text in enumerate(texts)],
  )
  scores = np.zeros(len(texts))
  rows = [tokens.ids for tokens in encoded]
  for batch in row_batches.batches(
    rows, max_length=None, batch_tokens=batch_tokens
  ):
    shape = batch.inputs["sequence_ids"].shape
    targets, is_word = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for i, text_index in enumerate(batch.row_indices):
      tokens = encoded[text_index]
      words = tokens.pieces[tokens.begin : tokens.end]
      targets[i, tokens.begin : tokens.end] = [
        id_by_word.get(word, UNKNOWN_WORD_ID) for word in words
      ]
      is_word[i, tokens.begin : tokens.end] = True
    log_p = words_log_p(module, params, batch.inputs, targets, is_word)
    scores[batch.row_indices] = np.asarray(log_p)[: len(batch.row_indices)]
  return scores


def measure_blimp(args: argparse.Namespace) -> dict[str, Any]:
  model = open_model(
    args.model, default_tower="discriminator", dtype="bfloat16"
  )
  if model.config["family"] == "elmo":
    blimp_files = blimp.read(args.blimp, args.pairs)
    texts = [
      text
      for file in blimp_files
      for text in (*file.good_sentences, *file.bad_sentences)
    ]
    scores = score_with_elmo(model, texts, batch_tokens=4096)
    sentence_counts = [
      len(sentences)
      for file in blimp_files
      for sentences in (file.good_sentences, file.bad_sentences)
    ]
    # The scores of good and of bad sentences take turns.
    score_lists = np.split(scores, np.cumsum(sentence_counts)[:-1])
    return {"method": "lm, both directions"} | blimp.accuracies(
      blimp_files, score_lists[::2], score_lists[1::2]
    )
  method = likelihood.default_method(model)
  if method == "lm":
    # The tokenizer's [CLS] and [SEP] are not in GPT-1's training rows.
    assert model.tokenizer is not None
    model.tokenizer.post_processor = None
  return {"method": method} | likelihood_tests.run_blimp(
    model, args.blimp, method, args.pairs, batch_tokens=65536
  )


def time_calls(function: Callable[[], Any], seconds: float) -> float:
  """Returns the mean time of a call, in seconds, after two calls to warm up."""
  for _ in range(2):
    jax.block_until_ready(function())
  num_calls, start = 0, time.perf_counter()
  while time.perf_counter() - start < seconds:
    for _ in range(5):
      result = function()
    jax.block_until_ready(result)
    num_calls += 5
  return (time.perf_counter() - start) / num_calls


def measure_speed(args: argparse.Namespace) -> dict[str, Any]:
  model = open_model(
    args.model, default_tower="discriminator", dtype="bfloat16"
  )
  encoder, params = model.module.encoder, model.params["encoder"]

  @jax.jit
  def last_layer(params, batch):
    return features.compute_layers(encoder, params, batch, (-1,))[0]

  result: dict[str, Any] = {"device": jax.devices()[0].device_kind}
  for num_rows in (1, 8) if args.tiny else (1, 32, 512):
    rng = np.random.default_rng(0)
    shape: tuple[int, ...] = (num_rows, LENGTH)
    batch = {"sequence_ids": jnp.ones(shape, jnp.int32)}
    if model.config["family"] == "elmo":
      characters = rng.integers(1, 262, (*shape, 50), np.int32)
      batch["char_ids"] = jnp.asarray(characters)
    else:
      ids = rng.integers(
        5, model.config["model"]["vocab_size"], shape, np.int32
      )
      batch["input_ids"] = jnp.asarray(ids)
    seconds = time_calls(
      functools.partial(last_layer, params, batch), 0.1 if args.tiny else 1.5
    )
    result[f"rows_{num_rows}"] = {
      "milliseconds": round(1e3 * seconds, 4),
      "rows_per_second": round(num_rows / seconds, 1),
    }
  sizes = [x.size for x in jax.tree.leaves(params)]
  return result | {"encoder_parameters": sum(sizes)}


def pack(args: argparse.Namespace) -> None:
  model = open_model(args.model)
  arrays = model_folder.flatten(model.params)
  content = io.BytesIO()
  np.savez(
    content,
    **{path: np.asarray(array, np.float16) for path, array in arrays.items()},
  )
  os.makedirs(args.output, exist_ok=True)
  packed = content.getvalue()
  for number, start in enumerate(range(0, len(packed), PART_BYTES)):
    path = os.path.join(args.output, f"params.npz.{number:02d}")
    with open(path, "wb") as f:
      f.write(packed[start : start + PART_BYTES])
  print(f"{args.output}: {len(packed):,} bytes")


MEASUREMENTS = {
  "heldout": measure_heldout,
  "blimp": measure_blimp,
  "speed": measure_speed,
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("what", choices=(*MEASUREMENTS, "pack"))
  add("--model", required=True, help="folder of the run")
  add("--output", required=True, help="JSON file; for pack a folder")
  add("--data", help="prepared folder, for heldout")
  add("--blimp", help="folder or tar file of BLiMP")
  add("--pairs", type=int, default=1000, help="pairs of each file of BLiMP")
  add("--tiny", action="store_true", help="smaller batches, for a trial")
  args = parser.parse_args()
  if args.what == "pack":
    pack(args)
  else:
    files.write_json(args.output, MEASUREMENTS[args.what](args))


if __name__ == "__main__":
  main()
