#!/usr/bin/env bash
# The published DAPO run on Qwen2.5-32B (verl-recipe dapo/run_dapo_qwen2.5_32b.sh), values restated.
set -euo pipefail

prompt_tokens=$((2 * 1024))
answer_tokens=$((20 * 1024))
buffer_tokens=$((4 * 1024))
groups=512
round=$((3 * groups))
budget=$((prompt_tokens + answer_tokens))
nodes=${NNODES:-16}
data=${DATA_HOME:-"${HOME}/verl/data"}

ray job submit --runtime-env="${RUNTIME_ENV:-runtime_env.yaml}" -- python3 -m dapo.main_dapo \
    data.train_files="${data}/dapo-math-17k.parquet" \
    data.val_files="${data}/aime-2024.parquet" \
    data.prompt_key=prompt data.truncation=left \
    data.max_prompt_length=${prompt_tokens} \
    data.max_response_length=${answer_tokens} \
    data.gen_batch_size=${round} \
    data.train_batch_size=${groups} \
    actor_rollout_ref.rollout.n=16 \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.kl_loss_coef=0.0 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.model.path="${data}/Qwen2.5-32B" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    +actor_rollout_ref.model.override_config.attention_dropout=0. \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${budget} \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=${budget} \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=${budget} \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.grad_clip=1.0 \
    actor_rollout_ref.actor.loss_agg_mode="token-mean" \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=8 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.80 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.max_num_batched_tokens=${budget} \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.top_k="-1" \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.ref.ulysses_sequence_parallel_size=8 \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=True \
    reward_model.overlong_buffer.len=${buffer_tokens} \
    reward_model.overlong_buffer.penalty_factor=1.0 \
    trainer.logger=['console','wandb'] \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes="${nodes}" \
    trainer.test_freq=5 trainer.save_freq=5 \
    trainer.total_epochs=1 \
    trainer.resume_mode=auto
