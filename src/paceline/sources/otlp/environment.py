"""Environment variables that let a Megatron-LM job send spans that can make a trace.

By default Lens lets one rank send, without steps and microbatches, over gRPC (NeMo Lens 0.2.0,
commit b85578f: ``config.py``, ``providers.py``; Megatron-LM core 0.20.0, commit d98e8a6:
``core/telemetry/span_groups.py``).
"""

from __future__ import annotations

GROUPS = "per_step,microbatch"

#: Megatron's page calls the strategy MEGATRON_OTEL_RANK_STRATEGY, which Lens 0.2.0 does not read.
VARIABLES = {
    "MEGATRON_OTEL_ENABLED": "1",
    "MEGATRON_OTEL_EXPORT_STRATEGY": "all_ranks",
    "MEGATRON_OTEL_SPAN_GROUPS": GROUPS,
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    # By default the SDK drops spans when 2,048 wait. A step of 64 microbatches has some 500.
    "OTEL_BSP_MAX_QUEUE_SIZE": "65536",
    "OTEL_BSP_SCHEDULE_DELAY": "1000",
}


def environment(traces_url: str) -> dict[str, str]:
    """Variable -> value, for a job whose spans shall go to ``traces_url``."""
    return {**VARIABLES, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": traces_url}
