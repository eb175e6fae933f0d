#!/usr/bin/env bash
# Makes the prepared folders that run.py reads, all at the same time:
#   prepare.sh TEXT OUTPUT WORDPIECE BYTELEVEL UNIGRAM BPE
# TEXT is an input of `bert_jax prepare`. The last four are vocabularies for BERT,
# RoBERTa, ALBERT and GPT-1. ELMo's vocabulary, 32,000 words, is made from TEXT.
set -euo pipefail
cd "$(dirname "$0")/../.."
text=$1 output=$2
mkdir -p "$output"
bert_jax vocab --input "$text" --tokenizer words --size 32000 \
  --output "$output/words.txt"
vocabularies=("$3" "$4" "$5" "$6" "$output/words.txt")
waited=()
for kind in wordpiece bytelevel unigram bpe words; do
  bert_jax prepare --input "$text" --heldout 0.01 \
    --vocab "${vocabularies[0]}" --output "$output/$kind" &
  waited+=($!)
  vocabularies=("${vocabularies[@]:1}")
done
for process in "${waited[@]}"; do
  wait "$process"
done
