# verl examples/rollout_correction/run_qwen2_5_7b_fsdp.sh, the settings that count
rollout_is="sequence"
bypass_mode="true"
loss_type="reinforce"
max_prompt_length=2048
max_response_length=4096
DATA=(
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    data.train_batch_size=128
    algorithm.adv_estimator=rloo
    algorithm.rollout_correction.rollout_is=${rollout_is}
    algorithm.rollout_correction.rollout_is_threshold=2.0
    algorithm.rollout_correction.rollout_is_batch_normalize=true
    algorithm.rollout_correction.rollout_rs=null
    algorithm.rollout_correction.bypass_mode=${bypass_mode}
    algorithm.rollout_correction.loss_type=${loss_type}
)
ACTOR=(
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
)
ROLLOUT=(
    actor_rollout_ref.rollout.calculate_log_probs=True
)
LAUNCH=(python3)
if [ "${VERL_USE_UV:-1}" != 0 ]; then
    LAUNCH=(uv run --frozen --no-sync python3)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${DATA[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "$@"
