# ProRL v2 (OpenRLHF examples/scripts/train_prorlv2_math_hybrid_engine.sh), the settings that count
python3 -m openrlhf.cli.train_ppo_ray \
   --init_kl_coef 1e-4 \
   --use_kl_loss \
   --kl_estimator k2 \
   --advantage_estimator reinforce_baseline \
   --dynamic_filtering \
   --dynamic_filtering_reward_range 0 1 \
   --eps_clip_low_high 0.2 0.27 \
   --remote_rm_url rm.py \
   --train_batch_size 1024 \
   --rollout_batch_size 512 \
   --n_samples_per_prompt 16 \
   --use_dynamic_batch \
   --prompt_max_len 1024 \
   --generate_max_len 8192 \
   --enable_vllm_is_correction \
   --vllm_is_truncated_threshold 0.5 5.0 \
   --use_icepop \
   --train_max_tokens_per_gpu 32768
