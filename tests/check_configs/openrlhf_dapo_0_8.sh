# OpenRLHF examples/scripts/train_dapo_ray_hybrid_engine.sh (flat arguments), values restated
set -x
python3 -m openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 \
   --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 \
   --advantage_estimator group_norm \
   --dynamic_filtering --dynamic_filtering_reward_range 0 1 \
   --eps_clip_low_high 0.2 0.27 \
   --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
   --micro_train_batch_size 8 --train_batch_size 128 \
   --rollout_batch_size 128 --n_samples_per_prompt 8 \
   --max_epochs 1 --prompt_max_len 1024 --generate_max_len 1024 \
   --gradient_checkpointing --packing_samples
