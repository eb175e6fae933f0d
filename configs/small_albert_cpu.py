"""A small ALBERT in minutes on two CPU cores.

Paper: Lan et al. 2020 for objective and data.
Sizes: chosen here, for two CPU cores and little text: 2 layers of 128, rows of
  128 tokens, float32, no dropout, wider initial values (0.02 is made for a
  width of 768).
Text: the docstrings that `make quickstart` collects.
Original hardware: none; 2 CPU cores.
Scores: held-out MLM loss 5.61 nats after 2,700 steps, 0.60 under the training
  unigrams' 6.21; at 1,500 steps 5.74. The sentence order is not learnt at this
  size (accuracy 0.46).
Command:
  python -m bert_jax.cli.train_vocab --kind unigram --size 4096 \\
    --input runs/quickstart/text.txt --output runs/unigram.model
  python -m bert_jax.cli.prepare --input runs/quickstart/text.txt \\
    --vocab runs/unigram.model --heldout 0.02 --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_albert_cpu.py \\
    --workdir runs/small_albert_cpu --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Two layers of 128, a few minutes."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=2700,
      batch_size=16,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="albert",
        variant="base_v2",
        hidden=128,
        num_layers=2,
        heads=2,
        mlp=512,
        embedding_size=128,
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu_new",
        initializer_range=0.05,
        dtype="float32",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=2,
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
        name="adamw",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="linear", peak=1.5e-3, warmup=0.15),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=500, examples=512),
      checkpoint=dict(every=500, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
