from trl import GRPOConfig, GRPOTrainer

CAP = 2048
config = GRPOConfig(
    output_dir="out",
    loss_type="bnpo",
    epsilon=0.2,
    epsilon_high=1.28,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=8,
    num_generations=8,
    max_completion_length=CAP,
    max_completion_lenght=1024,
    mask_truncated_completions=True,
    top_p=0.9,
)
