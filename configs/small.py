r"""Small runs of every objective, minutes on two CPU cores or on one GPU.

Paper: see the config file of each family. The objective and the data are those
  of that paper.
Settings: the sizes were chosen here. A config *_cpu has 2 layers with a width
  of 128, rows of 128 tokens, float32 and no dropout. A config *_gpu has 4
  layers with a width of 512, and 128 rows of 128 tokens a batch. Exceptions are
  below. Some narrow models draw their initial parameters with a larger standard
  deviation than BERT's 0.02, which is meant for a width of 768. ALBERT is
  trained with Adam, because LAMB is meant for batches of thousands of rows.

  The last column is the loss on held-out text at the end, in nats a token, of a
  run on two CPU cores. A masked LM's loss (MLM) counts the masked tokens. An
  ELMo's loss is the mean of both directions. "0.60 under 6.21": the model's
  loss is 0.60 less than 6.21, the loss of guessing by the pieces' frequencies
  in the training text. distil_cpu was not measured.
  name          steps    text and pieces        held-out loss
  albert_cpu    2,700  docstrings, unigram   MLM 5.61, 0.60 under 6.21; MLM at
                                             1,500 steps 5.74; the sentence
                                             order is not learnt (accuracy 0.46)
  distil_cpu    1,000  quickstart's data
  electra_cpu   2,000  quickstart's data     generator: MLM 5.20, 1.10 under
                                             6.30. discriminator: 0.372
  elmo_cpu      1,500  docstrings, words     4.33, 1.28 under 5.61; at 1,000
                                             steps 4.38
  gpt_cpu       1,500  quickstart's data     4.43, 1.80 under 6.23; at 1,000
                                             steps 4.54
  roberta_cpu   2,700  docstrings,           MLM 5.93, 0.72 under 6.65; MLM at
                       byte-level BPE        1,500 steps 6.06
  spanbert_cpu  2,700  quickstart's data     MLM 5.49, 0.69 under 6.18; MLM from
                                             the two tokens beside a span 5.63
  albert_gpu   22,000  Wikipedia, unigram
  electra_gpu  24,000  Wikipedia, WordPiece
  elmo_gpu      8,000  Wikipedia, words
  gpt_gpu      10,000  Wikipedia, BPE
  roberta_gpu  10,000  Wikipedia, byte-level BPE
  spanbert_gpu 10,000  Wikipedia, WordPiece
  teacher_gpu  20,000  Wikipedia, WordPiece
  alone_gpu, distil_gpu, tinybert_gpu  10,000  the text of their teacher

  In electra_cpu, 15% of the generator's targets keep their token, so they are
  easier to predict. The discriminator has hardly learnt: its loss is 0.9% less
  than the loss of a constant guess, when 12.5% of the tokens are replaced.
  The docstrings are the text of `make quickstart`. elmo_cpu has a vocabulary of
  3,000 words.
  Original hardware: these sizes were not published, so there is none. Here,
  *_cpu ran on two CPU cores and *_gpu on one GPU. For the GPU configs, ten
  million tokens of Wikipedia are enough. experiments/small_configs/README.md
  has their losses, and the losses of a second run of the CPU configs (there,
  ALBERT's accuracy for the sentence order is 0.47).

teacher_gpu: 12 layers with a width of 256. It is BERT's model, but a row has
  sentences of one document, and there is no next sentence prediction (Liu et
  al. 2019), because its students read such rows.
distil_gpu: a student of 6 layers with a width of 256 (Sanh et al. 2019).
  Compare its `kl_loss` on the held-out rows with the `kl_loss` of alone_gpu.
alone_gpu: the same student without distillation. The losses of distillation
  have weight 0 and are only logged (Sanh et al. 2019, section 4.1). Its initial
  parameters are copied from the teacher. For random ones instead, add:
  --config.objective.layers='()' --config.objective.freeze_positions=False.
tinybert_gpu: 4 layers with a width of 128 and 4 heads, as many heads as the
  teacher has (Jiao et al. 2020, sections 3.1 and 3.2).
distil_cpu: 1 layer with a width of 128. It begins as the first layer of its
  teacher, which is the model of `make quickstart`. Its rows have 32 tokens, as
  the teacher's rows do.
electra_cpu, electra_gpu: the generator has a width of 64 (CPU) or 256 (GPU). On
  the GPU there is no dropout, and the embeddings are as wide as the layers, as
  in ELECTRA-base.
elmo_cpu, elmo_gpu: two layers for each direction, the full softmax, rows
  without states, and AdamW. elmo_cpu has 256 cells; a word's vector has 64
  numbers, from 128 filters. elmo_gpu has 2,048 cells; a word's vector has 256
  numbers, from 512 filters.

`make quickstart` makes the text, the data and the model in runs/quickstart.
Command: for the data of the quickstart, one of
  bert_jax train --config configs/small.py:gpt_cpu --workdir runs/small_gpt \
    --config.data.path=runs/quickstart/data
  bert_jax train --config configs/small.py:distil_cpu \
    --workdir runs/small_distil --config.data.path=runs/quickstart/data \
    --config.teacher.path=runs/quickstart
albert_cpu, roberta_cpu and elmo_cpu need other vocabularies, trained on the
same text. These commands are for albert_cpu. For roberta_cpu, `vocab` needs
--tokenizer bytelevel, and for elmo_cpu --tokenizer words --size 3000:
  bert_jax vocab --tokenizer unigram --size 4096 \
    --input runs/quickstart/text.txt --output runs/unigram.model
  bert_jax prepare --input runs/quickstart/text.txt \
    --vocab runs/unigram.model --heldout 0.02 --output PREPARED_FOLDER
For the GPU, prepare Wikipedia. The table says which kind of VOCABULARY a config
needs; for elmo_gpu it is made with --tokenizer words --size 32000:
  bert_jax prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \
    --vocab VOCABULARY --output PREPARED_FOLDER
  bert_jax train --config configs/small.py:teacher_gpu \
    --workdir runs/small_teacher --config.data.path=PREPARED_FOLDER
  bert_jax train --config configs/small.py:distil_gpu \
    --workdir runs/small_distil --config.data.path=PREPARED_FOLDER \
    --config.teacher.path=runs/small_teacher
"""

from typing import Any

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs import (
  albert,
  distilbert,
  electra,
  elmo,
  gpt,
  roberta,
  spanbert,
  tinybert,
)
from bert_jax.configs.common import MASKED, PRETRAIN, check_name, merge
from ml_collections import ConfigDict

LENGTH = dict(model=dict(max_positions=128), data=dict(length=128))
PREDICTIONS = dict(data=dict(max_predictions=20))
CPU = dict(
  total_steps=2700,
  batch_size=16,
  model=dict(
    dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.05,
    dtype="float32",
    unroll=2,
  ),
  optimizer=dict(name="adamw"),
  schedule=dict(name="linear", peak=1.5e-3, warmup=0.15),
  evaluate=dict(every=500, examples=512),
  checkpoint=dict(every=500),
)
GPU = dict(
  total_steps=10_000,
  batch_size=128,
  model=dict(unroll=4),
  schedule=dict(peak=5e-4, warmup=0.1),
  log=dict(every=500),
  evaluate=dict(every=1000, examples=2048),
  checkpoint=dict(every=2000),
)
SCALES = {"cpu": CPU, "gpu": GPU}


def model_of_size(
  layers: int, hidden: int, heads: int, **other_settings: Any
) -> dict:
  """Returns the section `model` for a size without a published name."""
  sizes = dict(hidden=hidden, num_layers=layers, heads=heads, mlp=4 * hidden)
  return dict(model=sizes | other_settings)


INITIAL_RANGE = dict(initializer_range=0.04)
CPU_SIZE = model_of_size(2, 128, 2)
GPU_SIZE = model_of_size(4, 512, 8)
MASKED_ROWS = (PRETRAIN, MASKED, LENGTH, PREDICTIONS)
# Each row has sentences of one document, so there is no next sentence
# prediction.
DOCUMENT_ROWS = dict(
  data=dict(builder="doc_sentences", replacement="bert", count="round")
)
LINEAR_DECAY = dict(schedule=dict(name="linear"))
MINI_TEACHER = dict(
  teacher=dict(model=dict(variant="mini", num_layers=12, max_positions=128)),
  model=dict(unroll=0),
)
STUDENT = (
  model_of_size(6, 256, 4, **INITIAL_RANGE),
  MINI_TEACHER,
  dict(schedule=dict(warmup=0.05)),
)
NO_DISTILLATION = dict(
  objective=dict(kl_weight=0.0, mlm_weight=1.0, cosine_weight=0.0)
)
LSTM_SETTINGS = dict(
  model=dict(highways=1),
  objective=dict(negatives=0, stateful=False),
  optimizer=dict(name="adamw", epsilon=1e-8),
  data=dict(streams=0),
)

# Name -> (the sections that are merged before `CPU` or `GPU`, the sections that
# are merged after it and override it).
CONFIG_PARTS = {
  "albert_cpu": (
    (*MASKED_ROWS, albert.FAMILY_SETTINGS),
    (CPU_SIZE, dict(model=dict(variant="base_v2", embedding_size=128))),
  ),
  "albert_gpu": (
    (*MASKED_ROWS, albert.FAMILY_SETTINGS),
    (
      GPU_SIZE,
      dict(total_steps=22_000),
      dict(model=dict(variant="base_v2", embedding_size=128, **INITIAL_RANGE)),
    ),
  ),
  "electra_cpu": (
    (*MASKED_ROWS, electra.FAMILY_SETTINGS),
    (
      model_of_size(2, 128, 2, embedding_size=128, generator_hidden=64),
      dict(
        total_steps=2000,
        model=dict(variant="small"),
        schedule=dict(name="electra"),
      ),
    ),
  ),
  "electra_gpu": (
    (*MASKED_ROWS, electra.FAMILY_SETTINGS),
    (
      model_of_size(
        4,
        512,
        8,
        embedding_size=512,
        generator_hidden=256,
        **INITIAL_RANGE,
      ),
      dict(
        total_steps=24_000,
        model=dict(variant="small", dropout=0.0, attention_dropout=0.0),
      ),
    ),
  ),
  "gpt_cpu": (
    (PRETRAIN, LENGTH, gpt.FAMILY_SETTINGS),
    (CPU_SIZE, dict(total_steps=1500, schedule=dict(name="cosine"))),
  ),
  "gpt_gpu": (
    (PRETRAIN, LENGTH, gpt.FAMILY_SETTINGS),
    (GPU_SIZE, dict(optimizer=dict(epsilon=1e-8))),
  ),
  "roberta_cpu": (
    (*MASKED_ROWS, roberta.FAMILY_SETTINGS),
    (CPU_SIZE, dict(model=dict(max_positions=130))),
  ),
  "roberta_gpu": (
    (*MASKED_ROWS, roberta.FAMILY_SETTINGS, roberta.FAIRSEQ, LINEAR_DECAY),
    (
      GPU_SIZE,
      dict(model=dict(max_positions=130), optimizer=dict(b2=0.98)),
    ),
  ),
  "spanbert_cpu": (
    (*MASKED_ROWS, spanbert.FAMILY_SETTINGS),
    (dict(model=dict(variant="tiny")),),
  ),
  "spanbert_gpu": (
    (*MASKED_ROWS, spanbert.FAMILY_SETTINGS, roberta.FAIRSEQ),
    (dict(model=dict(variant="small")),),
  ),
  "teacher_gpu": (
    (*MASKED_ROWS, DOCUMENT_ROWS, LINEAR_DECAY),
    (
      model_of_size(12, 256, 4, family="bert", unroll=0, **INITIAL_RANGE),
      dict(total_steps=20_000, objective=dict(pairs=False)),
    ),
  ),
  "distil_cpu": (
    (*MASKED_ROWS, distilbert.DISTILLATION),
    (
      model_of_size(1, 128, 2, unroll=0),
      dict(
        total_steps=1000,
        batch_size=64,
        data=dict(length=32, max_predictions=5),
        objective=dict(layers=(0,)),
        schedule=dict(peak=1e-3, warmup=0.05),
        teacher=dict(model=dict(variant="tiny", max_positions=128)),
      ),
    ),
  ),
  "distil_gpu": ((*MASKED_ROWS, distilbert.DISTILLATION), STUDENT),
  "alone_gpu": (
    (*MASKED_ROWS, distilbert.DISTILLATION),
    (*STUDENT, NO_DISTILLATION),
  ),
  "tinybert_gpu": (
    (*MASKED_ROWS, DOCUMENT_ROWS, tinybert.GENERAL_STAGE, LINEAR_DECAY),
    (
      model_of_size(4, 128, 4, variant="4x312", initializer_range=0.05),
      MINI_TEACHER,
    ),
  ),
}
FILTERS = {
  "cpu": ((1, 16), (2, 16), (3, 32), (4, 64)),
  "gpu": ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)),
}
ELMO_SCALES = {
  "cpu": dict(
    total_steps=1500,
    batch_size=32,
    model=dict(variant="small", hidden=64, cell=256, dtype="float32"),
    data=dict(length=20),
    schedule=dict(peak=2e-3),
    evaluate=dict(every=500, examples=512),
    checkpoint=dict(every=500),
  ),
  "gpu": dict(
    total_steps=8000,
    batch_size=128,
    model=dict(variant="medium", hidden=256, cell=2048),
    data=dict(length=64),
    schedule=dict(peak=1e-3),
    log=dict(every=500),
    evaluate=dict(every=1000, examples=1024),
    checkpoint=dict(every=2000),
  ),
}


def get_config(name: str = "gpt_cpu") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  check_name(name, [*CONFIG_PARTS, *(f"elmo_{scale}" for scale in ELMO_SCALES)])
  family, _, scale = name.partition("_")
  if family == "elmo":
    changes = dict(
      model=dict(filters=FILTERS[scale]),
      schedule=dict(name="cosine", warmup=0.05),
    )
    return merge(
      elmo.FAMILY_SETTINGS, LSTM_SETTINGS, changes, ELMO_SCALES[scale]
    )
  first_settings, last_settings = CONFIG_PARTS[name]
  return merge(*first_settings, SCALES[scale], *last_settings)
