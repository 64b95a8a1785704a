#!/bin/bash
# slime scripts/run-qwen3-4B.sh, values restated
HERE="$(cd -- "$(dirname -- "$0")" && pwd)"
source "${HERE}/models/qwen3-4B.sh"
LINKS=$(nvidia-smi topo -m | grep -c NV)
if [ "$LINKS" -gt 0 ]; then NVLINK=1; else NVLINK=0; fi

ROLLOUT_ARGS=(
   --prompt-data /data/dapo-math-17k.jsonl
   --rm-type deepscaler
   --num-rollout 3000
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --rollout-temperature 0.8

   --global-batch-size 256
)
PERF_ARGS=(
   --context-parallel-size 1
   # --micro-batch-size 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)
GRPO_ARGS=(
   --advantage-estimator grpo
   --use-kl-loss
   --kl-loss-coef 0.00
   --kl-loss-type low_var_kl
   --eps-clip 0.2
   --eps-clip-high 0.28
)
ENV_JSON="{\"env_vars\": {\"NCCL_NVLS_ENABLE\": \"${NVLINK}\"}}"
ray job submit --runtime-env-json="${ENV_JSON}" \
   -- python3 train.py \
   --hf-checkpoint /models/Qwen3-4B \
   --colocate \
   ${MODEL_ARGS[@]} \
   ${ROLLOUT_ARGS[@]} \
   ${GRPO_ARGS[@]} \
   ${PERF_ARGS[@]}
