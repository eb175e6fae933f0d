"""Compares sentence vectors per second with transformers' compiled BERT.

  python benchmarks/inference.py --lengths 32,128,512

Both sides run on the same device, one after the other, each in a separate
process. They apply BERT with random weights in bfloat16 to batches of
`--tokens` tokens (padding included). The rows are at least half full. A
sentence's vector is the mean over its tokens without padding. bert_jax reads
the sentences of a batch in one row without padding. With `--padded`, or without
the kernels that read only the blocks of each sentence, bert_jax reads padded
rows. The peer, transformers' model, is compiled for each length, with SDPA. The
program prints one JSON object. Its ratio compares the median sentences per
second of both sides.
"""

import argparse
import json

import numpy as np
import side_by_side

# Size -> (width, layers, heads).
SIZES = {"base": (768, 12, 12), "large": (1024, 24, 16)}


def make_batch(
  length: int, batch_tokens: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns ids and masks, int32 [rows, length], of rows at least half full."""
  rng = np.random.default_rng(0)
  num_rows = max(batch_tokens // length, 1)
  ids = rng.integers(1000, vocab_size, (num_rows, length), dtype=np.int32)
  row_lengths = rng.integers(length // 2, length + 1, (num_rows, 1))
  mask = (np.arange(length) < row_lengths).astype(np.int32)
  return ids * mask, mask


def make_inputs(args: argparse.Namespace, length: int, is_flat: bool) -> dict:
  """Returns a batch as the arguments of our model.

  If `is_flat` is True, all sentences are in one row without padding.
  """
  from bert_jax.examples.rows import flat_row

  ids, mask = make_batch(length, args.tokens, args.vocab)
  if not is_flat:
    return dict(input_ids=ids, sequence_ids=mask)
  rows_and_lengths = zip(ids, mask.sum(1), strict=True)
  return flat_row([row[:row_length] for row, row_length in rows_and_lengths])


def measure_ours(args: argparse.Namespace) -> dict:
  """Measures `models.bert` under `jax.jit`, with weights that are cast once."""
  import flax.linen as nn
  import jax
  import jax.numpy as jnp

  from bert_jax.devices import sharding
  from bert_jax.kernels import fused
  from bert_jax.models import bert

  dtype = jnp.dtype(args.dtype)
  is_flat = (
    not args.padded
    and fused.choose_implementation("attention", "auto", dtype) == "triton"
  )
  model = bert.build(args.size, vocab_size=args.vocab, dtype=args.dtype)
  example_ids = jnp.zeros((1, 8), jnp.int32)
  params = nn.unbox(jax.jit(model.init)(jax.random.key(0), example_ids))
  params = jax.tree.map(lambda x: x.astype(dtype), params)

  def sentence_vectors(params, inputs, num_sentences):
    hidden, _ = model.apply(params, **inputs)
    ids = inputs["sequence_ids"]
    if is_flat:
      in_sequence = (ids == jnp.arange(1, num_sentences + 1)[:, None]).astype(
        hidden.dtype
      )
      sums = jnp.dot(in_sequence, hidden[0], preferred_element_type=jnp.float32)
      return sums / in_sequence.sum(1, keepdims=True, dtype=jnp.float32)
    weights = ids[..., None].astype(jnp.float32)
    return (hidden * weights).sum(1) / weights.sum(1)

  sentence_vectors = sharding.jit(sentence_vectors, static_argnums=2)
  speeds = {}
  for length in map(int, args.lengths.split(",")):
    inputs = jax.tree.map(jnp.asarray, make_inputs(args, length, is_flat))
    num_rows = max(args.tokens // length, 1)

    def run(count, inputs=inputs, num_rows=num_rows):
      for _ in range(count):
        vectors = sentence_vectors(params, inputs, num_rows)
      vectors.block_until_ready()

    median_ms, _ = side_by_side.time_calls(run, args.steps, args.windows)
    speeds[str(length)] = round(num_rows / median_ms * 1e3)
  return dict(
    device=jax.devices()[0].device_kind,
    jax=jax.__version__,
    flat=is_flat,
    sentences_per_second=speeds,
  )


def measure_peer(args: argparse.Namespace) -> dict:
  """Measures transformers' BertModel, on a GPU under torch.compile."""
  import torch
  import transformers

  width, layers, heads = SIZES[args.size]
  config = transformers.BertConfig(
    vocab_size=args.vocab,
    hidden_size=width,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    intermediate_size=4 * width,
    attn_implementation="sdpa",
  )
  device = "cuda" if torch.cuda.is_available() else "cpu"
  model = transformers.BertModel(config, add_pooling_layer=False)
  model = model.to(device, getattr(torch, args.dtype)).eval()

  def sentence_vectors(ids, mask):
    hidden = model(ids, attention_mask=mask).last_hidden_state.float()
    weights = mask[..., None].float()
    return (hidden * weights).sum(1) / weights.sum(1)

  speeds = {}
  for length in map(int, args.lengths.split(",")):
    torch._dynamo.reset()
    call = (
      torch.compile(sentence_vectors, dynamic=False)
      if device == "cuda"
      else sentence_vectors
    )
    ids, mask = make_batch(length, args.tokens, args.vocab)
    ids, mask = (torch.tensor(x, device=device).long() for x in (ids, mask))

    def run(count, call=call, ids=ids, mask=mask):
      with torch.inference_mode():
        for _ in range(count):
          call(ids, mask)
      if device == "cuda":
        torch.cuda.synchronize()

    median_ms, _ = side_by_side.time_calls(run, args.steps, args.windows)
    speeds[str(length)] = round(len(ids) / median_ms * 1e3)
  name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
  return dict(
    device=name,
    torch=torch.__version__,
    transformers=transformers.__version__,
    sentences_per_second=speeds,
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--size", default="base", choices=tuple(SIZES))
  add("--lengths", default="32,64,128,256,512")
  add(
    "--tokens", type=int, default=32768, help="tokens in a batch, padding too"
  )
  add("--vocab", type=int, default=30522)
  add("--dtype", default="bfloat16")
  add("--steps", type=int, default=20, help="batches in a time measurement")
  add("--windows", type=int, default=5, help="time measurements")
  add("--padded", action="store_true", help="give our model rows with padding")
  add("--part", choices=("ours", "peer", "both"), default="both")
  args = parser.parse_args()
  if args.part == "both":
    print(
      side_by_side.run_both_sides(__file__, vars(args), "sentences_per_second")
    )
  else:
    measure = measure_ours if args.part == "ours" else measure_peer
    print(json.dumps(measure(args)))


if __name__ == "__main__":
  main()
