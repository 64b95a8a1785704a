#!/usr/bin/env bash
# verl-recipe dapo/run_dapo_qwen2.5_7b_npu.sh, values restated
prompt=$((1024 * 2)); answer=$((1024 * 20)); sp=4
batch=16
launch=(
    data.max_prompt_length=${prompt} data.max_response_length=${answer}
    data.train_batch_size=${batch} data.gen_batch_size=$((batch * 3))
    actor_rollout_ref.rollout.n=16
    # the DAPO settings
    actor_rollout_ref.actor.clip_ratio_low=0.2
    actor_rollout_ref.actor.clip_ratio_high=0.28
    actor_rollout_ref.actor.clip_ratio_c=10.0
    actor_rollout_ref.actor.loss_agg_mode="token-mean"
    algorithm.adv_estimator=grpo
    algorithm.filter_groups.enable=True
    algorithm.filter_groups.metric=acc
    algorithm.filter_groups.max_num_gen_batches=10
    reward_model.reward_manager=dapo
    +reward_model.overlong_buffer.enable=True
    +reward_model.overlong_buffer.len=$((1024 * 4))
    +reward_model.overlong_buffer.penalty_factor=1.0
    +reward_model.reward_kwargs.max_resp_len=${answer}
)
python3 -m recipe.dapo.main_dapo "${launch[@]}" \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((prompt + answer) / sp)) \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=$(((prompt + answer) / sp)) \
    actor_rollout_ref.actor.ppo_mini_batch_size=1 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.top_k="-1" \
    trainer.n_gpus_per_node=16 trainer.nnodes=1 trainer.total_epochs=1
