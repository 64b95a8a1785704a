python -m verl.experimental.fully_async_policy.fully_async_main \
    data.train_batch_size=0 data.gen_batch_size=1 \
    data.max_prompt_length=1024 data.max_response_length=4096 \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    algorithm.adv_estimator=grpo \
    async_training.staleness_threshold=0.5 async_training.require_batches=4 \
    +algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=acc
