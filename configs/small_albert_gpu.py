"""A small ALBERT in minutes on one GPU.

Paper: Lan et al. 2020 for objective and data.
Sizes: chosen here, for one GPU and minutes: 4 layers of 512, rows of 128
  tokens, 128 of them a batch, 22,000 steps, wider initial values (0.02 is made
  for a width of 768). Adam, as LAMB is made for batches of thousands.
Text: Wikipedia, prepared with ALBERT's SentencePiece model; ten million tokens
  are enough.
Original hardware: none; one GPU.
Command:
  python -m bert_jax.cli.prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \\
    --vocab VOCABULARY --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_albert_gpu.py \\
    --workdir runs/small_albert_gpu --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Four layers of 512, minutes on one GPU."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=22_000,
      batch_size=128,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="albert",
        variant="base_v2",
        hidden=512,
        num_layers=4,
        heads=8,
        mlp=2048,
        embedding_size=128,
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu_new",
        initializer_range=0.04,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=4,
        remat=False,
      ),
      objective=dict(name="mlm", pairs=True, pair_name="sop"),
      data=dict(
        path="",
        builder="albert_pairs",
        length=128,
        max_predictions=20,
        mask_rate=0.15,
        short_probability=0.1,
        single="split",
        masking="ngram",
        replacement="bert",
        count="round",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw_bert",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="bert", peak=5e-4, warmup=0.1),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=500),
      evaluate=dict(every=1000, examples=2048),
      checkpoint=dict(every=2000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
