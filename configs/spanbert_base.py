"""SpanBERT-base, masked spans and their boundaries.

Paper: Joshi et al. 2020, "SpanBERT: Improving Pre-training by Representing and
  Predicting Spans", sections 3 and 4.2.
Sizes: 12 layers of 768, 12 heads, 110M parameters (facebookresearch/SpanBERT
  README).
Recipe: 256 sequences of 512 tokens a batch, 2,400,000 steps, Adam 1e-4 with
  warm-up over 10,000 steps and linear decay, epsilon 1e-8, decay 0.01 on every
  parameter, clipping at 1.0, dropout 0.1; spans of whole words, lengths
  geometric with p 0.2 up to 10, masked alike, 15%; masked LM plus the boundary
  objective with vectors of 200 for 15 positions; rows of one document, no next
  sentence prediction (section 3; facebookresearch/SpanBERT
  pretraining/README.md, the command). The recipe is the large one's [not
  published apart].
Data: books and Wikipedia, cased; BERT's vocabulary (section 4.2).
Original hardware: [not published for this size]; the large one took 32 V100 15
  days (section 4.2).
Scores: SQuAD 1.1 dev 92.4 F1, 2.0 dev 83.6; OntoNotes coreference 77.4; TACRED
  68.2 (README).
Command:
  python -m bert_jax.cli.train --config configs/spanbert_base.py \\
    --workdir runs/spanbert_base --config.data.path=PREPARED_FOLDER
On a TPU slice, and on several hosts: docs/hosts.md. Which slices it fits:
  docs/tpu.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=2_400_000,
      batch_size=256,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="bert",
        variant="base",
        vocab_size=placeholder(int),  # that of the data
        max_positions=512,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      objective=dict(name="mlm", pairs=False, span_boundary=True),
      data=dict(
        path="",
        builder="doc_sentences",
        length=512,
        max_predictions=77,
        mask_rate=0.15,
        masking="span",
        replacement="unigram",
        count="ceil",
        static_masks=0,
        max_sequences=1,
        cased=True,
      ),
      optimizer=dict(
        name="adamw_fairseq",
        b1=0.9,
        b2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="linear", peak=1e-4, warmup=10_000 / 2_400_000),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=5000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
