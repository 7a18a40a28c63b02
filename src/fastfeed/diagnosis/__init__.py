"""Says which bottleneck a training job has, by running its own step in three ways.

    job -> rounds (ceiling, cached, real) -> evidence -> verdicts

The step on a batch that is already there is the ceiling, fed from batches kept in memory it shows
what the hand-over costs, fed by the loader it is real. The verdicts are a pure function over the
evidence; nothing is advised without a figure beside it.
"""
