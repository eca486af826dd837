"""An application of two handlers: one that cannot await and one that can.

A task may run more than once, when a worker dies between the work and the report of it. Both handlers therefore tell
their other side which task it is, by an id that is the same at every attempt.
"""

from __future__ import annotations

import smtplib
from contextlib import suppress
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated, Any, Literal

import httpx2
from pydantic import Field, HttpUrl, JsonValue, StringConstraints

from examples import outbound
from examples.retry_after import retry_after
from taketurns import Context, Fail, Retry, Taketurns

Address = Annotated[str, StringConstraints(pattern=r'^[^\s@<>()\[\]\\,;:"]+@[^\s@<>()\[\]\\,;:"]+$', max_length=254)]
OneLine = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=900)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", max_length=100)]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?$", max_length=4_000)]

SMTP_SECONDS = 30

tt = Taketurns()


@tt.task
def send_email(ctx: Context, to: Address, subject: OneLine = "", body: str = "") -> str:
    """Send a letter by the SMTP server of the settings; answers its Message-ID."""
    sender = tt.settings.smtp_sender
    letter = EmailMessage()
    letter["From"] = sender
    letter["To"] = to
    letter["Subject"] = subject
    letter["Date"] = format_datetime(ctx.created_at)
    letter["Message-ID"] = f"<{ctx.task_id}@{sender.rpartition('@')[2]}>"
    letter.set_content(body)
    with smtplib.SMTP(tt.settings.smtp_host, tt.settings.smtp_port, timeout=SMTP_SECONDS) as server:
        _hand_over(letter, server)
        with suppress(smtplib.SMTPException):  # the letter was taken: what is said on leaving does not matter
            server.quit()
    return str(letter["Message-ID"])


def _hand_over(letter: EmailMessage, server: smtplib.SMTP) -> None:
    """Raises Fail for a letter that the server will never take; whatever else is raised is tried again."""
    try:
        server.send_message(letter)
    except smtplib.SMTPRecipientsRefused as refusal:
        code, reason = next(iter(refusal.recipients.values()))
        _fail_for_good(code, reason)
        raise
    except smtplib.SMTPResponseException as refusal:
        _fail_for_good(refusal.smtp_code, refusal.smtp_error)
        raise
    except smtplib.SMTPNotSupportedError as refusal:
        raise Fail(f"the mail server cannot take such a letter: {refusal}") from refusal


def _fail_for_good(code: int, reason: bytes | str) -> None:
    if 500 <= code < 600:
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise Fail(f"the mail server refuses the letter: {code} {told}")


@tt.task
async def http_request(
    ctx: Context,
    url: HttpUrl,
    *,
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "POST",
    headers: dict[HeaderName, HeaderValue] | None = None,
    body: JsonValue = None,
    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 30.0,
) -> dict[str, Any]:
    """Call a URL with a JSON body; answers the status and the beginning of the text that comes back.

    The task fails at once for a private address, unless the settings allow it, and for a status of 4xx but 408 and
    429; it is tried again for these, after the time that the server asks for, for 5xx, and when nobody answers.
    """
    request = outbound.Request(
        method=method,
        url=httpx2.URL(str(url)),
        headers=httpx2.Headers(headers) | {"Idempotency-Key": str(ctx.task_id)},
        body=body,
    )
    may_reach = outbound.anything if tt.settings.http_allow_private else outbound.is_public
    try:
        answer = await outbound.send(request, timeout_seconds=timeout_seconds, may_reach=may_reach)
    except outbound.Refused as refused:
        raise Fail(str(refused)) from refused
    if answer.status in {408, 429} or answer.status >= 500:
        raise Retry(f"{answer.url.host} answered {answer.status}", after=retry_after(answer.headers))
    if answer.status >= 400:
        raise Fail(f"{answer.url.host} answered {answer.status}: {answer.text[:200]}")
    return {"status": answer.status, "body": answer.text}
