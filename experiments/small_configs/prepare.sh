#!/usr/bin/env bash
# The prepared folders that run.py reads, side by side:
#   prepare.sh TEXT OUTPUT WORDPIECE BYTELEVEL UNIGRAM BPE
# TEXT is what `bert_jax prepare --input` takes; then a vocabulary of each kind
# (BERT's, RoBERTa's, ALBERT's, GPT-1's). ELMo's 32,000 words are counted in TEXT.
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
