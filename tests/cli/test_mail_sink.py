"""The mail sink, given letters by a real client."""

import asyncio
import smtplib
from email.message import EmailMessage

from taketurns.cli.mail_sink import Letter, mail_sink


async def test_a_letter_is_reported_in_one_line() -> None:
    letters: list[Letter] = []
    async with mail_sink(letters.append) as port:
        await asyncio.to_thread(send, port, letter("Grüße", "<7@acme>"))

    (taken,) = letters
    assert taken.recipients == ("a@acme.example", "b@acme.example")
    assert str(taken) == "mail from us@taketurns.example to a@acme.example, b@acme.example: Grüße <7@acme>"


async def test_a_letter_cannot_write_to_the_terminal() -> None:
    letters: list[Letter] = []
    async with mail_sink(letters.append) as port:
        await asyncio.to_thread(send, port, b"Subject: =?utf-8?q?red_=1b=5b31mred?=\r\n\r\nbody\r\n")

    assert str(letters[0]).endswith(": red ?[31mred")


async def test_letters_arrive_side_by_side() -> None:
    letters: list[Letter] = []
    async with mail_sink(letters.append) as port:
        await asyncio.gather(*(asyncio.to_thread(send, port, letter(f"{number}", "<n@x>")) for number in range(8)))

    assert {taken.subject for taken in letters} == {f"{number}" for number in range(8)}


async def test_a_letter_without_headers_is_taken_in() -> None:
    letters: list[Letter] = []
    async with mail_sink(letters.append) as port:
        await asyncio.to_thread(send, port, b"no headers at all")

    assert letters[0].subject == "(no subject)"


def letter(subject: str, message_id: str) -> bytes:
    message = EmailMessage()
    message["Subject"] = subject
    message["Message-ID"] = message_id
    message.set_content("Hello")
    return message.as_bytes()


def send(port: int, content: bytes) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=10) as client:
        client.sendmail("us@taketurns.example", ["a@acme.example", "b@acme.example"], content)
