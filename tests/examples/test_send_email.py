"""Mail goes out by a real SMTP server, once for a task as far as the other side can tell."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from examples.handlers import send_email, tt
from taketurns import Fail, InvalidPayload, Status
from taketurns.testing.engine import Engine
from tests.examples.attempts import TASK_ID, attempt


@dataclass
class MailServer:
    """Answers with what a test says, and keeps what it took."""

    answer_to_recipient: str = "250 OK"
    answer_to_data: str = "250 OK"
    answer_to_quit: str = "221 Bye"
    envelopes: list[Envelope] = field(default_factory=list)

    @property
    def letters(self) -> list[EmailMessage]:
        return [
            email.message_from_bytes(envelope.content, policy=email.policy.default)
            for envelope in self.envelopes
            if isinstance(envelope.content, bytes)
        ]

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if self.answer_to_recipient.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.answer_to_recipient

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answer_to_data.startswith("250"):
            self.envelopes.append(envelope)
        return self.answer_to_data

    async def handle_QUIT(self, _server: SMTP, _session: Session, _envelope: Envelope) -> str:  # noqa: N802
        return self.answer_to_quit


@pytest.fixture
async def mail_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MailServer]:
    handler = MailServer()
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(handler, hostname="localhost"), "127.0.0.1", 0)
    monkeypatch.setattr(tt.settings, "smtp_host", "127.0.0.1")
    monkeypatch.setattr(tt.settings, "smtp_port", server.sockets[0].getsockname()[1])
    monkeypatch.setattr(tt.settings, "smtp_sender", "shop@example.org")
    yield handler
    server.close()


async def send(**arguments: Any) -> str:
    return await asyncio.to_thread(send_email, attempt(), **arguments)


async def test_a_letter_arrives(mail_server: MailServer) -> None:
    await send(to="ada@example.com", subject="Ünïcode, и так далее", body="It is your turn.\n.\nÜber.")
    (letter,) = mail_server.letters
    assert (letter["From"], letter["To"]) == ("shop@example.org", "ada@example.com")
    assert letter["Subject"] == "Ünïcode, и так далее"
    assert letter.get_content().splitlines() == ["It is your turn.", ".", "Über."]
    assert [envelope.rcpt_tos for envelope in mail_server.envelopes] == [["ada@example.com"]]


async def test_a_letter_may_have_no_subject_and_no_body(mail_server: MailServer) -> None:
    await send(to="ada@example.com")
    assert len(mail_server.letters) == 1


async def test_every_attempt_sends_the_same_message_id(mail_server: MailServer) -> None:
    answers = [await send(to="ada@example.com") for _ in range(2)]
    assert answers == [f"<{TASK_ID}@example.org>"] * 2
    assert [letter["Message-ID"] for letter in mail_server.letters] == answers
    assert len({letter["Message-ID"] for letter in mail_server.letters}) == 1


@pytest.mark.parametrize("point", ["answer_to_recipient", "answer_to_data"])
async def test_a_letter_that_is_refused_for_good_is_not_tried_again(mail_server: MailServer, point: str) -> None:
    setattr(mail_server, point, "550 no such mailbox")
    with pytest.raises(Fail, match=r"550 .*no such mailbox"):
        await send(to="ada@example.com")


@pytest.mark.parametrize("point", ["answer_to_recipient", "answer_to_data"])
async def test_a_letter_that_is_refused_for_the_moment_is_tried_again(mail_server: MailServer, point: str) -> None:
    setattr(mail_server, point, "451 come back later")
    with pytest.raises(OSError, match="come back later"):
        await send(to="ada@example.com")


async def test_what_is_said_after_the_letter_was_taken_does_not_matter(mail_server: MailServer) -> None:
    mail_server.answer_to_quit = "554 I am tired"
    assert await send(to="ada@example.com")


async def test_a_server_that_is_away_is_tried_again(mail_server: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tt.settings, "smtp_port", 1)
    with pytest.raises(ConnectionRefusedError):
        await send(to="ada@example.com")


async def test_an_address_that_the_server_cannot_take_is_not_tried_again(mail_server: MailServer) -> None:
    with pytest.raises(Fail, match="cannot take such a letter"):
        await send(to="ädä@example.com")


async def test_a_worker_sends_it_again_when_the_server_asks_for_that(
    taketurns: Engine, mail_server: MailServer
) -> None:
    task = await send_email.enqueue(company="acme", to="ada@example.com", subject="Hello")
    mail_server.answer_to_data = "451 come back later"
    assert (await taketurns.drain()).retried == 1
    mail_server.answer_to_data = "250 OK"
    await taketurns.advance(minutes=1)
    await taketurns.drain()
    assert [state.result for state in taketurns.finished(send_email)] == [f"<{task.id}@example.org>"]
    assert [letter["Message-ID"] for letter in mail_server.letters] == [f"<{task.id}@example.org>"]


async def test_a_worker_gives_up_on_a_letter_that_is_refused(taketurns: Engine, mail_server: MailServer) -> None:
    await send_email.enqueue(company="acme", to="ada@example.com")
    mail_server.answer_to_recipient = "550 no such mailbox"
    await taketurns.drain()
    (state,) = taketurns.finished(send_email)
    assert (state.status, state.retry_count) == (Status.FAILED, 0)
    assert "no such mailbox" in (state.error or "")


@pytest.mark.parametrize(
    "payload",
    [
        {"to": "ada"},
        {"to": "ada@example.com, eve@example.com"},
        {"to": "ada@example.com\r\nBcc: eve@example.com"},
        {"to": "Ada <ada@example.com>"},
        {"to": "ada@example.com", "subject": "Hi\r\nBcc: eve@example.com"},
        {"to": "ada@example.com", "cc": "eve@example.com"},
        {"subject": "to nobody"},
    ],
)
def test_what_is_no_single_address_or_line_is_refused_when_the_task_is_created(payload: dict[str, str]) -> None:
    with pytest.raises(InvalidPayload):
        send_email.type.validate(payload)
