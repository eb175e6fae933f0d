"""A small GPT in minutes on one GPU.

Paper: Radford et al. 2018 for objective and data.
Sizes: chosen here, for one GPU and minutes: 4 layers of 512, rows of 128
  tokens, 128 of them a batch, 10,000 steps.
Text: Wikipedia, prepared with GPT-1's BPE; ten million tokens are enough.
Original hardware: none; one GPU.
Command:
  python -m bert_jax.cli.prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \\
    --vocab VOCABULARY --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_gpt_gpu.py \\
    --workdir runs/small_gpt_gpu --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Four layers of 512, minutes on one GPU."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=10_000,
      batch_size=128,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="gpt",
        variant="base",
        hidden=512,
        num_layers=4,
        heads=8,
        mlp=2048,
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu_new",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=4,
        remat=False,
      ),
      objective=dict(name="lm"),
      data=dict(
        path="",
        builder="lm",
        length=128,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="cosine", peak=5e-4, warmup=0.1),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=500),
      evaluate=dict(every=1000, examples=2048),
      checkpoint=dict(every=2000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
