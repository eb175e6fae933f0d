"""Estimates the time of a step of transformers' Flax BERT on a TPU slice.

python -m experiments.tpu_cycles.peer --topology v5e:4x4 --size base --phase 1

The step is a plain one: FlaxBertForPreTraining in bfloat16 with dropout, the
logits of all positions, optax.adamw, parameters on every device. Batch and
length are those of the phase of configs/bert.py. It needs libtpu, and the last
version of transformers that has Flax models, in a folder of its own:

pip install --no-deps --target peer_only transformers==4.55.4 \
  tokenizers==0.21.4 huggingface_hub==0.34.4
PYTHONPATH=peer_only:libtpu_only python -m experiments.tpu_cycles.peer ...

It prints a JSON object, whose entries have the names of
`bert_jax compile --cycles --json`.
"""

import argparse
import json
import time

from bert_jax.cli import compile as compile_command

# Settings of transformers.BertConfig, whose defaults are those of BERT-base.
SIZES = {
  "base": {},
  "large": {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
  },
}


def make_step(module, optimizer):
  """Returns (params, state, batch, key) -> (params, state, loss)."""
  import jax
  import jax.numpy as jnp
  import optax

  def train_step(params, state, batch, key):
    def mean_loss(params):
      outputs = module.apply(
        {"params": params},
        *(batch[name] for name in INPUTS),
        None,
        deterministic=False,
        rngs={"dropout": key},
      )
      logits, pair_logits = (x.astype(jnp.float32) for x in outputs[:2])
      cross_entropy = optax.softmax_cross_entropy_with_integer_labels
      labels = batch["labels"]
      is_masked = labels >= 0
      losses = cross_entropy(logits, jnp.maximum(labels, 0)) * is_masked
      pair_loss = cross_entropy(pair_logits, batch["pair_labels"]).mean()
      return losses.sum() / is_masked.sum() + pair_loss

    loss, gradients = jax.value_and_grad(mean_loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss

  return train_step


INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def estimate(size, phase, topology, remat):
  """Compiles the step for a slice, and returns its report."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  import optax
  import transformers
  from jax.sharding import Mesh, NamedSharding, PartitionSpec
  from transformers.models.bert import modeling_flax_bert

  from bert_jax.cli import configs
  from bert_jax.devices import hlo, tpu_cycles
  from bert_jax.training import topologies

  config = configs.read(f"bert:{size}")
  own_step = topologies.make_step(config, phase - 1, topology)
  rows, length = (
    own_step.phase.batch_size,
    own_step.phase.data_options["length"],
  )
  devices = own_step.mesh.devices.reshape(-1)
  mesh = Mesh(np.array(devices), ("data",))
  replicated = NamedSharding(mesh, PartitionSpec())
  rows_split = NamedSharding(mesh, PartitionSpec("data"))

  def replicated_shapes(tree):
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated),
      tree,
    )

  shapes = {name: (rows, length) for name in (*INPUTS, "labels")}
  shapes["pair_labels"] = (rows,)
  batch = {
    name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows_split)
    for name, shape in shapes.items()
  }
  module = modeling_flax_bert.FlaxBertForPreTrainingModule(
    transformers.BertConfig(**SIZES[size]),
    dtype=jnp.bfloat16,
    gradient_checkpointing=remat,
  )
  ids = [jax.ShapeDtypeStruct((1, length), jnp.int32)] * len(INPUTS)
  params = jax.eval_shape(
    lambda *ids: module.init(jax.random.key(0), *ids, None)["params"], *ids
  )
  optimizer = optax.adamw(1e-4, weight_decay=0.01)
  state = jax.eval_shape(optimizer.init, params)
  key = jax.eval_shape(lambda: jax.random.key(0))
  start = time.monotonic()
  compiled = (
    jax.jit(make_step(module, optimizer), donate_argnums=(0, 1))
    .trace(
      *map(replicated_shapes, (params, state)), batch, replicated_shapes(key)
    )
    .lower(lowering_platforms=("tpu",))
    .compile()
  )
  cycles = tpu_cycles.estimate_step(
    hlo.parse_program(compiled.as_text()),
    [],
    topology,
    len(devices),
    own_step.flops / len(devices),
  )
  # The group of an instruction follows from the names of this project's
  # modules, which the peer does not have.
  del cycles["groups"]
  return {
    "peer": f"transformers {transformers.__version__} FlaxBertForPreTraining",
    "topology": topology,
    "size": size,
    "phase": phase,
    "batch_size": rows,
    "length": length,
    "remat": remat,
    "temporaries_bytes": compiled.memory_analysis().temp_size_in_bytes,
    "cycles": cycles,
    "compile_seconds": round(time.monotonic() - start, 1),
    **topologies.compiler_versions(),
  }


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--topology", required=True)
  parser.add_argument("--size", choices=SIZES, default="base")
  parser.add_argument("--phase", type=int, choices=(1, 2), default=1)
  parser.add_argument("--remat", action="store_true")
  args = parser.parse_args()
  compile_command._prepare_environment()
  report = estimate(args.size, args.phase, args.topology, args.remat)
  print(json.dumps(report))


if __name__ == "__main__":
  main()
