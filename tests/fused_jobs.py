"""1F1B with fused, blocking calls, played by hand: what veScale and Megatron-LM do.

A transfer begins when both sides have called, and a call returns when all its transfers are over.
"""

from collections import defaultdict
from itertools import count

FORWARD, BACKWARD = "forward-compute", "backward-compute"
#: Call -> its transfers: (sends, forward).
CALLS = {
    "forward-recv": ((False, True),),
    "forward-send": ((True, True),),
    "backward-recv": ((False, False),),
    "backward-send": ((True, False),),
    "forward-send-backward-recv": ((True, True), (False, False)),
    "backward-send-forward-recv": ((True, False), (False, True)),
}


def program(stage, stages, microbatches):
    """What a stage runs in a step, after forward_backward_pipelining_without_interleaving."""
    first, last = stage == 0, stage == stages - 1
    ahead = min(stages - stage - 1, microbatches)
    steady = microbatches - ahead
    calls = []

    def call(name, skipped):
        if not skipped:
            calls.append(name)

    for _ in range(ahead):
        call("forward-recv", first)
        calls.append(FORWARD)
        call("forward-send", last)
    if steady:
        call("forward-recv", first)
    for i in range(steady):
        calls.append(FORWARD)
        call("forward-send-backward-recv", last)
        calls.append(BACKWARD)
        call("backward-send" if i == steady - 1 else "backward-send-forward-recv", first)
    for _ in range(ahead):
        call("backward-recv", last)
        calls.append(BACKWARD)
        call("backward-send", first)
    return calls


def play(stages=4, dp=2, microbatches=8, steps=4, slow=(), transfer_s=0.002, forward_s=0.01):
    """(dp, stage, step, name, start in s, end in s) of every call; ``slow`` is {(dp, stage): x}."""
    slow, rows, begin_s = dict(slow), [], 0.0
    for step in range(steps):
        ends = []
        for replica in range(dp):
            played = _replica(replica, stages, microbatches, slow, transfer_s, forward_s, begin_s)
            rows += [(replica, stage, step, *row) for stage, row in played]
            ends.append({s: max(row[2] for at, row in played if at == s) for s in range(stages)})
        for stage in range(stages):
            end_s = max(of_replica[stage] for of_replica in ends) + 0.003
            rows += [
                (replica, stage, step, "grad-reduce-scatter", ends[replica][stage], end_s)
                for replica in range(dp)
            ]
        begin_s = max(row[5] for row in rows) + 0.001
    return rows


def _replica(replica, stages, microbatches, slow, transfer_s, forward_s, begin_s):
    programs = [program(stage, stages, microbatches) for stage in range(stages)]
    now, at = [begin_s] * stages, [0] * stages
    posted = defaultdict(dict)  # (receiving stage, forward, number) -> stage -> time
    numbers = defaultdict(count)
    waiting, played = {}, []
    while any(at[stage] < len(programs[stage]) for stage in range(stages)):
        for stage in range(stages):
            if at[stage] == len(programs[stage]):
                continue
            name = programs[stage][at[stage]]
            if name in (FORWARD, BACKWARD):
                seconds = forward_s * (1 + (name == BACKWARD)) * slow.get((replica, stage), 1)
                end_s = now[stage] + seconds
            else:
                if stage not in waiting:
                    waiting[stage] = []
                    for sends, forward in CALLS[name]:
                        to = stage + (1 if forward else -1) * sends
                        number = next(numbers[stage, to, forward])
                        posted[to, forward, number][stage] = now[stage]
                        waiting[stage].append((to, forward, number))
                if any(len(posted[key]) < 2 for key in waiting[stage]):
                    continue
                end_s = max(max(posted[key].values()) for key in waiting[stage]) + transfer_s
                del waiting[stage]
            played.append((stage, (name, now[stage], end_s)))
            now[stage] = end_s
            at[stage] += 1
    return played
