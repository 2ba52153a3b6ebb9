"""The options of the score modes, one section each."""

from __future__ import annotations

from monitor.config.strict import Strict, option

#: The monitor's own modes. Each has a section of its name.
OWN_MODES = ("token_aware", "inflight_kv", "expected_wait", "weighted_sum")


class TokenAware(Strict):
    """Parameters of ``score = "token_aware"``; the last four are used by the other modes too."""

    prefill_weight: float = option(
        3.0, "price of 1000 prompt tokens that wait for their first token, in requests", ge=0, le=100
    )
    kv_weight: float = option(5.0, "weight of k/(1-k), k being the KV cache demand", ge=0, le=1000)
    kv_limit: float = option(0.98, "the largest k that is put into k/(1-k)", ge=0.5, le=0.999)
    slots_weight: float = option(
        5.0, "price of each request beyond the batch slots of an instance, in requests", ge=0, le=1000
    )
    prompt_tokens: int = option(
        220, "tokens of a prompt whose length is unknown, until a running mean is known", ge=1, le=1_000_000
    )
    generated_tokens: int = option(
        120, "tokens a running request is expected to have generated", ge=1, le=1_000_000
    )
    nominal_kv_capacity: int = option(
        400_000, "KV cache of an instance that does not tell its own", unit="tokens", ge=1000, le=10**9
    )
    speed_dead_band: float = option(
        0.10, "deviation from the fleet's mean speed that is taken as no deviation, as a share", ge=0, le=1
    )


class InflightKv(Strict):
    """Parameters of ``score = "inflight_kv"``."""

    lambda_: float = option(
        1.5, "weight of k/(1-k), k being the KV cache usage", alias="lambda", ge=0, le=1000
    )
    kv_limit: float = option(0.999, "the largest k that is put into k/(1-k)", ge=0.5, le=0.9999)


class ExpectedWait(Strict):
    """Parameters of ``score = "expected_wait"``."""

    throughput: float = option(
        2000.0, "tokens that an instance of the fleet's mean speed works off", unit="tokens/s", ge=1, le=10**6
    )
    request_tokens: float = option(
        200.0, "tokens of work that a request stands for, its waiting prompt apart", ge=1, le=10**6
    )
    kv_weight: float = option(0.15, "weight of k/(1-k), k being the KV cache demand", unit="s", ge=0, le=100)
    kv_limit: float = option(0.999, "the largest k that is put into k/(1-k)", ge=0.5, le=0.9999)


class WeightedSum(Strict):
    """Parameters of ``score = "weighted_sum"``. A request in an instance weighs 1."""

    prefill_weight: float = option(
        1.0, "extra weight of a request that waits for its first token", ge=0, le=1000
    )
    decode_weight: float = option(0.5, "extra weight of any other request", ge=0, le=1000)
    waiting_weight: float = option(
        0.25, "extra weight of a request of others in the queue of an instance", ge=0, le=10
    )
    backlog_weight: float = option(
        1.0, "weight of a second of prefill that is still to be done", ge=0, le=1000
    )
    prefill_rate: float = option(
        7500.0, "prompt tokens that an instance works off", unit="tokens/s", ge=1, le=10**6
    )
    qps_weight: float = option(
        0.0, "weight of a finished request per second over the last minute", ge=0, le=10
    )
