"""A mail server for this machine that delivers nothing: it reports each letter, so that mail is sent for real."""

import asyncio
import contextlib
import email.policy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from aiosmtpd.smtp import SMTP, Envelope, Session

_HEADERS = BytesHeaderParser(policy=email.policy.default)


@dataclass(frozen=True)
class Letter:
    """What is said of a message that was taken in."""

    sender: str
    recipients: tuple[str, ...]
    subject: str
    message_id: str

    def __str__(self) -> str:
        line = f"mail from {self.sender} to {', '.join(self.recipients)}: {self.subject} {self.message_id}"
        return "".join(character if character.isprintable() else "?" for character in line.strip())


@contextlib.asynccontextmanager
async def mail_sink(
    received: Callable[[Letter], None], *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Take in mail on the port that is given out, a free one unless it is named."""
    taker = _Taker(received)
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(taker, hostname="localhost", enable_SMTPUTF8=True), host, port
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class _Taker:
    def __init__(self, received: Callable[[Letter], None]) -> None:
        self._received = received

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        self._received(_letter(envelope))
        return "250 Taken in"


def _letter(envelope: Envelope) -> Letter:
    content = envelope.content or b""
    headers = _HEADERS.parsebytes(content if isinstance(content, bytes) else content.encode())
    return Letter(
        sender=envelope.mail_from or "<>",
        recipients=tuple(envelope.rcpt_tos),
        subject=str(headers.get("Subject", "(no subject)")),
        message_id=str(headers.get("Message-ID", "")),
    )
