"""Closed forms for sampling, decoding and queueing, and for what the objective does to a policy.

What each module answers, under assumptions that every docstring states:

``groups``          share of prompt groups that are mixed, what the filter keeps (A1, A2, A9)
``sampling``        waves and candidates of refill and whole rounds, estimators of q (A3, A6-A8)
``capped``          refill under a candidate cap: joint law of waves, candidates, kept (A4, A5)
``collection``      policies without a barrier: streaming, one-for-one, over-provision (A10-A14)
``tails``           expected longest response of a wave (B1, B2)
``barrier``         time of the refill waves and their amplification (B3, B4)
``decode``          time of a wave under an affine decode law and a slot limit (B5-B8, B11)
``speculation``     speculative decoding: tokens and seconds of an iteration, a wave's long tail
``queueing``        open servers: M/M/1 to M/M/c, processor sharing, Little's law (B9, B10, F7)
``length_bias``     weight of a token by aggregation, baselines, micro-batches (C1, C2, C8)
``length_bandit``   length classes of a softmax policy: gradients, drifts, ODE (C3, C4)
``hazard_bandit``   the smallest policy with an end-of-sequence token (C5)
``difficulty``      std normalisation and dynamic sampling by pass rate (C6, C7)
``clipping``        multipliers of the clips, reach of one rollout, clip shares (D1-D3, D6)
``entropy``         what updates and clips do to the entropy (D4, D5)
``overlong``        flipped signs, solved groups, filter on shaped reward (E1-E6)
``pipeline``        one-step-off and streaming: cycles, rates, staleness (F1-F6)

The package needs numpy and scipy alone and shares no code with the simulator it judges.
Symbols: B groups wanted by a step, G responses of a group, q probability that a group is mixed.
"""
