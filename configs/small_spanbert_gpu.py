"""A small SpanBERT in minutes on one GPU.

Paper: Joshi et al. 2020 for objective and data.
Sizes: chosen here, for one GPU and minutes: 4 layers of 512, rows of 128
  tokens, 128 of them a batch, 10,000 steps.
Text: Wikipedia, prepared with BERT's uncased vocabulary; ten million tokens are
  enough.
Original hardware: none; one GPU.
Command:
  python -m bert_jax.cli.prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \\
    --vocab VOCABULARY --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_spanbert_gpu.py \\
    --workdir runs/small_spanbert_gpu --config.data.path=PREPARED_FOLDER
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
        family="bert",
        variant="small",
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=4,
        remat=False,
      ),
      objective=dict(name="mlm", pairs=False, span_boundary=True),
      data=dict(
        path="",
        builder="doc_sentences",
        length=128,
        max_predictions=20,
        mask_rate=0.15,
        masking="span",
        replacement="unigram",
        count="ceil",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw_fairseq",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="linear", peak=5e-4, warmup=0.1),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=500),
      evaluate=dict(every=1000, examples=2048),
      checkpoint=dict(every=2000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
