"""Looks at the machine and says what starves its GPUs, in words and with the figures it saw.

    machine -> seen -> checks -> verdict

`Machine` reads for a few seconds, the checks are pure functions over what it has seen, and a check
that could not see says why: it is never a pass. Nothing here loads torch.
"""
