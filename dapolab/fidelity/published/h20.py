"""Qwen2.5-Math-7B on H20s, from the model's configuration and NVIDIA's data sheet.

A decode iteration reads the weights and the KV cache (bytes over bandwidth). An H20 multiplies
little for what it reads: past 37 responses (148 Tflop/s over 4 TB/s at two bytes a weight) the
flops of each response bind, so b has them, where an H100's has the sampler alone.
"""

from dapolab.scenario import AffineLaw, FirstPrinciplesLaw
from dapolab.sim.hardware import first_principles, kv_capacity_tokens

SLOTS = 1024
"""verl's default rollout.max_num_seqs."""


def _shape(tensor_parallel: int) -> FirstPrinciplesLaw:
    return FirstPrinciplesLaw(
        gpu="h20",
        tensor_parallel=tensor_parallel,
        parameters=7.62e9,
        layers=28,
        kv_heads=4,
        head_dim=128,
    )


def decode_law(tensor_parallel: int, *, scale: float = 1.0) -> AffineLaw:
    """Return the law of one replica, every term times ``scale``."""
    shape = _shape(tensor_parallel)
    law = first_principles(shape)
    return AffineLaw(
        a_s=scale * law.a_s,
        # a decoded token costs the flops of a prefilled one
        b_s=scale * (shape.per_sequence_s + law.prefill_s),
        c_s=scale * law.c_s,
        prefill_s=scale * law.prefill_s,
        prefill_slack_s=scale * law.prefill_slack_s,
        source=law.source,
    )


def kv_tokens(tensor_parallel: int, *, memory_share: float = 0.8) -> int:
    """Return tokens that fit beside the weights (verl's scripts: gpu_memory_utilization 0.8)."""
    return kv_capacity_tokens(_shape(tensor_parallel), memory_share=memory_share)
