#!/usr/bin/env bash
# What one short slot on a GPU is for, in order of value; six minutes at most.
#
#   gpu_runs/run_gpu.sh [--smoke] [FOLDER]
#
# Each stage writes when it ends, a stage that fails or runs out of time does not stop the next.
# FOLDER/stages.tsv says how each ended; FOLDER/results.tar.gz holds the small tables so far.
# --smoke runs everything in little, on a CPU too: it shows that the script works, not speed.
# Until a manifest made by it is committed, nothing here has ever run on a GPU.
set -uo pipefail
cd "$(dirname "$0")/.."

smoke=0
if [ "${1:-}" = "--smoke" ]; then smoke=1; shift; fi
out=${1:-runs/gpu}
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
device=$([ $smoke = 1 ] && echo auto || echo cuda)
export PYTHONUNBUFFERED=1
mkdir -p "$out"
printf 'stage\texit\tseconds\n' > "$out/stages.tsv"
failed=0

# stage NAME SECONDS COMMAND...: run it under a time limit and write down how it ended
stage() {
  local name=$1 limit=$2 began code
  shift 2
  if [ $smoke = 1 ]; then limit=300; fi  # a busy CPU proves nothing about time
  began=$SECONDS
  echo "== $name (at most $limit s)"
  timeout --kill-after=10 "$limit" "$@" > "$out/$name.log" 2>&1
  code=$?
  printf '%s\t%s\t%s\n' "$name" "$code" "$((SECONDS - began))" >> "$out/stages.tsv"
  if [ $code -ne 0 ]; then
    failed=1
    echo "   failed ($code): $(tail -n 1 "$out/$name.log")"
  fi
  (cd "$out" && find . \( -name '*.json' -o -name '*.tsv' -o -name '*.log' \
    -o -name 'steps.parquet' -o -name 'updates.parquet' -o -name 'waves.parquet' \
    -o -name 'evaluations.parquet' -o -name 'medians.parquet' -o -name 'trace.parquet' \) \
    -print0 | tar --null --files-from=- -czf results.tar.gz)
}

train=("$python" -m gpu_runs train)
little=()
ten=(--steps 12)
toy=(--steps 20)
smoke_flag=()
if [ $smoke = 1 ]; then
  smoke_flag=(--smoke)
  little=(--rollout.groups_per_step 4 --rollout.group_size 4 --train.responses_per_update 8
    --engine.slots 16 --evaluation.n_prompts 4 --evaluation.n_samples 2
    --evaluation.pass_at "[1, 2]" --data.n_prompts 64)
  ten=(--steps 1 --model.d_model 64 --model.n_layers 1 --model.n_heads 2 --model.n_kv_heads 2
    --model.d_mlp 64 --model.warm_steps 5 --model.warm_batch 8)
  toy=(--steps 1)
fi

stage parity 45 "$python" -m gpu_runs.parity --device "$device" "${smoke_flag[@]}" -o "$out/parity.json"
stage calibrate_toy 45 "$python" -m gpu_runs calibrate toy_gpu --device "$device" \
  "${smoke_flag[@]}" "${little[@]}" -o "$out/calibrate_toy"
if [ $smoke = 0 ]; then
  stage calibrate_10m 55 "$python" -m gpu_runs calibrate gpu_10m --device "$device" \
    -o "$out/calibrate_10m"
fi
stage waves_10m 100 "${train[@]}" gpu_10m --device "$device" "${little[@]}" "${ten[@]}" \
  -o "$out/waves_10m"
for mode in token-mean seq-mean-token-mean; do
  for seed in 0 1; do
    stage "toy_${mode}_$seed" 25 "${train[@]}" toy_gpu --device "$device" "${little[@]}" \
      "${toy[@]}" --seed "$seed" --collector.kind none \
      --objective.aggregation.kind "$mode" -o "$out/toy_${mode}_$seed"
  done
done
cat "$out/stages.tsv"
exit $failed
