"""DistilBERT-base, distilled from BERT-base in pre-training.

Paper: Sanh et al. 2019, "DistilBERT, a distilled version of BERT: smaller,
  faster, cheaper and lighter", sections 2 and 3.
Sizes: 6 layers of 768, 12 heads, 66M parameters (section 2, Table 3); the
  teacher has 12 layers, 110M.
Recipe: 5 KL at temperature 2 over all tokens, 2 masked LM, 1 cosine of the last
  hidden states; begun with the teacher's layers 0, 2, 4, 7, 9, 11, embeddings
  and head, the positions kept as they are; 15% of the tokens hidden, chosen by
  count^-0.7; batches of up to 4K rows of 512 tokens, no next sentence
  prediction, new masks in every epoch (section 3); AdamW 5e-4 with b2 0.98,
  epsilon 1e-6, no decay, warm-up over 5%, linear decay, clip 5.0, 3 epochs
  (huggingface/transformers research_projects/distillation README.md, train.py,
  distiller.py, scripts/extract_distilbert.py).
Steps: computed here: 3 epochs of 3,300M words of Wikipedia and books at 1.3
  pieces a word are 6,150 batches of 4,096 rows of 512.
Masks are counted a row, where distiller.py counts them over the batch that a
  device has.
Original hardware: 8 V100 of 16 GB, about 90 hours (section 3).
Scores: GLUE dev, macro 77.0 (BERT-base 79.5): CoLA 51.3, MNLI 82.1, MRPC 87.5,
  QNLI 89.2, QQP 88.5, RTE 59.9, SST-2 91.3, STS-B 86.9, WNLI 56.3; SQuAD 1.1
  dev F1 86.9 (README.md).
DistilRoBERTa: configs/distilroberta.py.
Command:
  python -m bert_jax.cli.train --config configs/distilbert.py \\
    --workdir runs/distilbert --config.data.path=PREPARED_FOLDER \\
    --config.teacher.path=BERT_BASE
The teacher: docs/distillation.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=6150,
      batch_size=4096,
      micro_batches=16,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="distilbert",
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
      teacher=dict(path="", model=dict(family="bert", variant="base")),
      objective=dict(
        name="distil",
        layers=(0, 2, 4, 7, 9, 11),
        kl_weight=5.0,
        mlm_weight=2.0,
        cosine_weight=1.0,
        temperature=2.0,
        kl_tokens="all",
        freeze_positions=True,
      ),
      data=dict(
        path="",
        builder="doc_sentences",
        length=512,
        max_predictions=77,
        mask_rate=0.15,
        masking="token",
        smoothing=0.7,
        replacement="bert",
        count="ceil_all",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.98,
        epsilon=1e-6,
        weight_decay=0.0,
        clip_norm=5.0,
      ),
      schedule=dict(name="linear", peak=5e-4, warmup=0.05),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=50),
      evaluate=dict(every=500, examples=10_000),
      checkpoint=dict(every=250, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
