"""Every setting, read once from the environment (`TAKETURNS_…`); rooms below are given values, never this object."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from taketurns.engine import addresses, key, registry, token

DAYS_MAX = 36_500.0
SECONDS_MAX = 86_400.0


class Settings(BaseSettings):
    """Durations are in seconds."""

    model_config = SettingsConfigDict(env_prefix="TAKETURNS_", extra="ignore", env_file=None, hide_input_in_errors=True)

    database_url: str = Field(
        "postgresql://taketurns:taketurns@localhost:5432/taketurns",
        description="PostgreSQL 16 or newer. `taketurns up` starts one of its own when this is not set.",
    )
    company_database_url: str | None = Field(
        None,
        description="The same database as another role, for what the API does in the name of a company: it sees of what"
        " companies own that company's rows alone. `taketurns db upgrade` makes the role. One role does all when this"
        " is not set, but `taketurns up` makes one in a PostgreSQL of its own.",
    )
    listen_url: str | None = Field(
        None, description="A direct URL for LISTEN when the others go through a transaction pooler."
    )
    schema_name: str = Field("taketurns", validation_alias="TAKETURNS_SCHEMA", pattern=r"^[a-z_][a-z0-9_]{0,47}$")
    redis_url: str | None = Field(
        None,
        description="Redis 7 or Valkey 8, or newer, for jobs; `redis+cluster://` for a cluster. There are no jobs when"
        " this is not set, but `taketurns up` starts a Valkey of its own.",
    )
    redis_wait_aof: bool = Field(
        False,
        description="Say that a job was created, cancelled or is run again only when Redis has that in its append-only"
        " file on the disk; otherwise a crash of Redis may lose about the last second.",
    )
    broker: Literal["postgres", "redis"] = Field("postgres", description="Where a worker takes its turns.")
    app: str | None = Field(None, description="Where the handlers are, as `module:variable`.")

    authentication: Literal["on", "off", "off-on-any-address"] = Field(
        "on",
        description="Whether the API asks for keys. `off` is for loopback: what comes by another address is refused."
        " `off-on-any-address` lets everybody in who reaches the API, so something in front of it must keep strangers"
        " out. `taketurns up` asks for none on loopback when this is not set.",
    )
    key_environment: str = Field(
        "live", pattern=f"^{key.ENVIRONMENT.pattern}$", description="The word after `tt_` in keys that are made here."
    )
    key_peppers: Annotated[list[SecretStr], NoDecode] = Field(
        [],
        description="Secrets, separated by commas, that are mixed into what is stored of keys: the first makes them,"
        " every one checks them. To rotate, put a new one first, and take the old one away when each key was used once"
        " since. Without the pepper that it was stored with, a key works no more. An empty one, after the first, is for"
        " keys that were made without.",
    )
    api_processes: int = Field(
        1,
        ge=1,
        le=1000,
        description="How many API processes requests are spread over. Each counts by itself, and lets an equal part of"
        " a company's rate of requests pass; with a number that is too small, companies may make that many times more.",
    )
    wrong_keys_per_minute: int = Field(
        60,
        ge=0,
        le=100_000,
        description="How often an address may come without a key that works, at each API process, before only keys are"
        " looked at that the process knows already. 0 for no limit.",
    )
    trusted_proxies: Annotated[list[str], NoDecode] = Field(
        [],
        description="Addresses and networks of proxies in front of the API, with commas between, that tell where a"
        " request comes from (X-Forwarded-For) and by which scheme (X-Forwarded-Proto). Nobody else is believed.",
    )
    metrics_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="Lets whoever sends it as a bearer token read /metrics, besides operators; without blanks.",
    )

    oidc_issuer: str | None = Field(
        None,
        description="An identity provider (OpenID Connect) whose tokens the API takes besides keys, as they name it in"
        " `iss`. Needs `pip install 'taketurns[oidc]'`.",
    )
    oidc_audience: str | None = Field(
        None, min_length=1, validate_default=True, description="What tokens for this API have in `aud`."
    )
    oidc_jwks_url: str | None = Field(
        None, description="Where the issuer's public keys are, when its own document must not be asked for that."
    )
    oidc_algorithms: Annotated[list[str], NoDecode] = Field(
        ["RS256", "ES256"],
        min_length=1,
        description="How tokens may be signed, by names with commas between: RS…, PS…, ES… or EdDSA.",
    )
    oidc_company_claim: str = Field(
        "company", min_length=1, description="The claim with a company's id or slug; a path with dots leads within."
    )
    oidc_scope_claim: str = Field("scope", min_length=1, description="The claim with the scopes: a text or a list.")
    oidc_role_claim: str | None = Field(
        None,
        min_length=1,
        description="The claim with the role of an operator, in tokens that name no company. No token is an operator's"
        " when this is not set.",
    )
    oidc_leeway_seconds: float = Field(
        30.0, ge=0, le=300, description="How far the clocks of the identity provider and of this host may be apart."
    )

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    dashboard_path: str = Field(
        "/dashboard",
        pattern=r"^(/[a-z0-9_-]{1,32}){1,4}$",
        description="Where the API has its dashboard: a path that begins with no word of the API's own.",
    )
    pool_size: int = Field(10, ge=2, le=500, description="Connections of one API process, at most.")
    pool_timeout: float = Field(
        5.0, gt=0, le=SECONDS_MAX, description="How long a request waits for a connection before 503."
    )
    statement_timeout: float = Field(10.0, gt=0, le=SECONDS_MAX, description="Longest statement of a request.")

    queues: Annotated[list[str], NoDecode] = Field(["default"], min_length=1)
    concurrency: int = Field(16, ge=1, le=1000, description="Handlers that run at once in one worker.")
    batch: int | None = Field(None, ge=1, le=1000, description="Largest claim; the free hands unless set.")
    worker_name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        pattern=r"^[ -~]*[!-~][ -~]*$",
        description="The name of a worker's or a pass's heartbeat, the same across restarts and deploys.",
    )
    poll_seconds: float = Field(1.0, gt=0, le=60)
    beat_seconds: float = Field(3.0, gt=0, le=60)
    stale_after_seconds: float = Field(15.0, gt=0, le=3600)
    max_rescues: int = Field(3, ge=0, le=100)
    shutdown_grace_seconds: float | None = Field(
        None,
        gt=0,
        description="How long running handlers are waited for after SIGTERM; without it, as long as it takes.",
    )
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(9100, ge=0, le=65535)

    keep_completed_days: float = Field(
        7.0, ge=0, le=DAYS_MAX, description="How long completed tasks are kept, unless their company says otherwise."
    )
    keep_failed_days: float = Field(30.0, ge=0, le=DAYS_MAX)
    keep_cancelled_days: float = Field(30.0, ge=0, le=DAYS_MAX)
    keep_completed_jobs_hours: float = Field(24.0, gt=0, le=24 * DAYS_MAX)
    keep_stopped_jobs_days: float = Field(7.0, gt=0, le=DAYS_MAX, description="For failed and cancelled jobs.")
    idempotency_hours: float = Field(24.0, gt=0, le=24 * DAYS_MAX)

    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    smtp_host: str = "127.0.0.1"
    smtp_port: int = Field(1025, ge=0, le=65535)
    smtp_sender: str = "taketurns@localhost"
    http_allow_private: bool = Field(False, description="Lets http_request reach private addresses.")

    @field_validator("key_peppers", mode="before")
    @classmethod
    def _split_peppers(cls, value: object) -> object:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) and value.strip() else value or []

    @field_validator("key_peppers")
    @classmethod
    def _are_long(cls, peppers: list[SecretStr]) -> list[SecretStr]:
        if any(len(pepper) < key.PEPPER_LENGTH_MIN for pepper in peppers if len(pepper) or pepper is peppers[0]):
            raise PydanticCustomError(
                "key_peppers", "must each have {least} characters or more", {"least": key.PEPPER_LENGTH_MIN}
            )
        return peppers

    @field_validator("oidc_issuer", "oidc_jwks_url")
    @classmethod
    def _cannot_be_tampered_with(cls, url: str | None) -> str | None:
        if url is not None and not addresses.is_trustworthy(url):
            raise PydanticCustomError("oidc_url", "must be an https:// URL, or http:// on loopback")
        return url

    @field_validator("oidc_audience")
    @classmethod
    def _is_there_with_an_issuer(cls, audience: str | None, given: ValidationInfo) -> str | None:
        if audience is None and given.data.get("oidc_issuer") is not None:
            raise PydanticCustomError("oidc_audience", "must be set with TAKETURNS_OIDC_ISSUER")
        return audience

    @field_validator("oidc_algorithms")
    @classmethod
    def _need_a_key_pair(cls, algorithms: list[str]) -> list[str]:
        if wrong := sorted(set(algorithms) - token.ALGORITHMS.keys()):
            raise PydanticCustomError(
                "oidc_algorithms",
                "{wrong} cannot be taken: a signature must need a private key, as with {known}",
                {"wrong": ", ".join(wrong), "known": ", ".join(token.ALGORITHMS)},
            )
        return algorithms

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, proxies: list[str]) -> list[str]:
        for proxy in proxies:
            if not addresses.is_network(proxy):
                raise PydanticCustomError(
                    "trusted_proxies", "must be addresses and networks, such as 127.0.0.1 or 10.0.0.0/8"
                )
        return proxies

    @field_validator("queues", "oidc_algorithms", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("metrics_token")
    @classmethod
    def _fits_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not re.fullmatch("[!-~]+", token.get_secret_value()):
            raise PydanticCustomError("metrics_token", "must be printable ASCII without blanks")
        return token

    @field_validator("queues")
    @classmethod
    def _are_queues(cls, queues: list[str]) -> list[str]:
        for queue in queues:
            for _, complaint in registry.check_options(queue=queue):
                raise PydanticCustomError("queue", "'{queue}' {complaint}", {"queue": queue, "complaint": complaint})
        return list(dict.fromkeys(queues))

    @field_validator("stale_after_seconds")
    @classmethod
    def _bears_a_late_beat(cls, seconds: float, given: ValidationInfo) -> float:
        if seconds < 3 * given.data.get("beat_seconds", 0.0):
            raise PydanticCustomError("stale_after", "must be at least three times TAKETURNS_BEAT_SECONDS")
        return seconds


@lru_cache(maxsize=1)
def current() -> Settings:
    """The settings of this process."""
    return Settings()
