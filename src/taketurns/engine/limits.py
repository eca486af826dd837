"""The limits a client meets, in one place; `GET /limits` and the OpenAPI document show the same numbers."""

from __future__ import annotations

from typing import Final

PAYLOAD_BYTES: Final = 256 * 1024
PAYLOAD_DEPTH: Final = 64
BATCH_TASKS: Final = 1_000
BATCH_BYTES: Final = 8 * 1024 * 1024
BODY_BYTES: Final = PAYLOAD_BYTES + 64 * 1024
IDEMPOTENCY_KEY_LENGTH: Final = 255
REQUEST_ID_LENGTH: Final = 128
NAME_LENGTH: Final = 200
SLUG_LENGTH: Final = 64
TYPE_LENGTH: Final = 128
QUEUE_LENGTH: Final = 64
PRIORITY_FIRST: Final = 0
PRIORITY_LAST: Final = 9
PRIORITY_DEFAULT: Final = 5
WEIGHT_MAX: Final = 100
IN_FLIGHT_MAX: Final = 1_000_000
QUOTA_MAX: Final = 1_000_000_000
MAX_RETRIES_DEFAULT: Final = 5
MAX_RETRIES_MAX: Final = 1_000
TIMEOUT_SECONDS_MAX: Final = 7 * 24 * 3600.0
DELAY_SECONDS_MAX: Final = 366 * 24 * 3600.0
PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
OFFSET_MAX: Final = 10_000
TYPES_IN_QUERY: Final = 10
OVERLAP_SECONDS_MAX: Final = 30 * 24 * 3600.0
WAIT_SECONDS_MAX: Final = 60
ERROR_LENGTH: Final = 8_192
RESULT_BYTES: Final = 256 * 1024
EXPRESSION_LENGTH: Final = 255
MISSED_TICKS_MAX: Final = 100
