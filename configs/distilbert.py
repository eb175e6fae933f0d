r"""DistilBERT and DistilRoBERTa: distilled from BERT or RoBERTa.

Paper: Sanh et al. 2019, "DistilBERT, a distilled version of BERT: smaller,
  faster, cheaper and lighter", sections 2 and 3. "README", train.py and
  distiller.py are in huggingface/transformers research_projects/distillation.
  This README describes DistilRoBERTa.
Settings: the loss is 5 times the KL divergence at temperature 2 over all
  tokens, plus 2 times the masked LM's loss, plus 1 times the cosine loss of the
  last hidden states. The student begins with the teacher's layers 0, 2, 4, 7, 9
  and 11, embeddings and head (for both configs; scripts/extract_distilbert.py,
  scripts/extract.py). The position embeddings are not trained.
  15% of the tokens are masked; a token is chosen in proportion to count^-0.7. A
  batch has up to "4K" rows of 512 tokens. There is no next sentence prediction,
  and masks are new in every epoch (section 3).
  The optimizer is AdamW with a peak rate of 5e-4, b2 0.98, epsilon 1e-6, no
  weight decay, a warm-up over 5% of the steps, linear decay, a clipping norm of
  5.0 and 3 epochs (README, train.py, distiller.py). Here, 15% of the tokens of
  each row are masked. distiller.py masks 15% of the tokens of a device's batch.
Steps: these were computed here. base: 3 epochs of 3,300M words of Wikipedia and
  books at 1.3 pieces a word are 6,150 batches of 4,096 rows of 512 tokens.
  roberta: 3 epochs of 40 GB at 4.5 bytes a piece are 12,700 such batches. The
  text of roberta is OpenWebText, a quarter of RoBERTa's text (README).

  name     layers x width, heads  parameters  teacher, layers, parameters
  base         6 x 768, 12           66M      BERT-base, 12 layers, 110M
  roberta      6 x 768, 12           82M      RoBERTa-base, 12 layers, 125M
  (sources: section 2; Table 3; README;
  training_configs/distilroberta-base.json)

  Scores on GLUE's development sets (README). The column "macro" is the average
  of the tasks, and the number in brackets is the teacher's average.
                macro  CoLA MNLI MRPC QNLI  QQP  RTE SST-2 STS-B WNLI
  base    77.0 (79.5)  51.3 82.1 87.5 89.2 88.5 59.9  91.3  86.9 56.3
  roberta 79.0 (83.2)  59.3 84.0 86.6 90.8 89.4 67.9  92.5  88.3 52.1
  base has an F1 of 86.9 on SQuAD 1.1's development set (README).
  Original hardware: base had 8 V100 of 16 GB for about 90 hours (section 3).
  The hardware of roberta is not published.

docs/distillation.md describes the teacher. Command:
  bert_jax train --config configs/distilbert.py:base \
    --workdir runs/distilbert --config.data.path=PREPARED_FOLDER \
    --config.teacher.path=BERT_BASE
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import MASKED, PRETRAIN, check_name, merge, unset
from ml_collections import ConfigDict

DISTILLATION = dict(
  model=dict(family="distilbert"),
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
    builder="doc_sentences",
    replacement="bert",
    count="ceil_all",
    smoothing=0.7,
  ),
  optimizer=dict(name="adamw", b2=0.98, weight_decay=0.0, clip_norm=5.0),
  schedule=dict(name="linear", peak=5e-4, warmup=0.05),
)
PUBLISHED_SETTINGS = dict(
  batch_size=4096,
  micro_batches=16,
  data=dict(length=512, max_predictions=77),
  log=dict(every=50),
  evaluate=dict(every=500),
  checkpoint=dict(every=250),
)
STUDENTS = {
  "base": dict(total_steps=6_150),
  "roberta": dict(
    total_steps=12_700,
    model=dict(
      family="roberta",
      num_layers=6,
      max_positions=514,
      padding_id=unset(int),  # from the data
    ),
    teacher=dict(model=dict(family="roberta")),
    data=dict(cased=True),
  ),
}


def get_config(name: str = "base") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  changes = STUDENTS[check_name(name, STUDENTS)]
  return merge(PRETRAIN, MASKED, DISTILLATION, PUBLISHED_SETTINGS, changes)
