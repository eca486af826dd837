"""What a browser does with pages, in a few words: reads them, follows links, fills in forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

from httpx2 import AsyncClient, Response

FORM = "application/x-www-form-urlencoded"


@dataclass
class Tag:
    name: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class FormOnPage:
    """A form with the values that it has; the last one of a name counts."""

    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """The tags of a page, its text and its forms."""

    VOID = frozenset({"input", "meta", "link", "br", "option"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.tags: list[Tag] = []
        self.forms: list[FormOnPage] = []
        self.texts: list[str] = []
        self._open: list[Tag] = []
        self._form: FormOnPage | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append(Tag(tag, attributes))
        if tag not in self.VOID:
            self._open.append(self.tags[-1])
        if tag == "form":
            self._form = FormOnPage(attributes.get("action", ""), attributes.get("method", "get"))
            self.forms.append(self._form)
        is_field = tag in {"input", "textarea"} and "name" in attributes and attributes.get("type") != "checkbox"
        if is_field and self._form is not None:
            self._form.fields[attributes["name"]] = attributes.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        while self._open and self._open.pop().name != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        for tag in self._open:
            tag.text += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, name: str, **attributes: str) -> list[Tag]:
        return [
            tag
            for tag in self.tags
            if tag.name == name and all(tag.attributes.get(key) == value for key, value in attributes.items())
        ]

    def form(self, ending: str) -> FormOnPage:
        """The form that is sent to an address that ends so."""
        return next(form for form in self.forms if form.action.endswith(ending) and form.method == "post")

    @property
    def links(self) -> Iterator[str]:
        for tag in self.tags:
            yield from (tag.attributes[name] for name in ("href", "src") if name in tag.attributes)


class Browser:
    """A client with cookies, under the prefix of the dashboard."""

    def __init__(self, client: AsyncClient, prefix: str = "/dashboard") -> None:
        self.client = client
        self.prefix = prefix

    async def get(self, path: str) -> Response:
        return await self.client.get(path if path.startswith(self.prefix) else f"{self.prefix}{path}")

    async def page(self, path: str, status: int = 200) -> Page:
        answer = await self.get(path)
        assert answer.status_code == status, answer.text
        return Page(answer.text)

    async def post(self, path: str, fields: dict[str, str] | list[tuple[str, str]]) -> Response:
        """A form as a browser sends it, without looking where it leads."""
        address = path if path.startswith(self.prefix) else f"{self.prefix}{path}"
        return await self.client.post(address, content=urlencode(fields), headers={"content-type": FORM})

    async def submit(self, form: FormOnPage, **fields: str) -> Response:
        """Fill in a form of a page and send it; answers the page that it leads to."""
        answer = await self.post(form.action, form.fields | fields)
        while answer.is_redirect:
            answer = await self.client.get(answer.headers["location"])
        return answer

    async def confirm(self, form: FormOnPage) -> Response:
        """Send a form that asks something first, and say that it is meant."""
        asked = Page((await self.submit(form)).text)
        (heading,) = asked.all("h1")
        assert heading.text == "Are you sure?"
        assert form.fields["question"] in "".join(asked.texts)
        return await self.submit(asked.form(form.action))

    async def sign_in(self, key: str) -> Response:
        form = (await self.page("/sign-in")).form("/sign-in")
        return await self.submit(form, key=key)

    async def token(self) -> str:
        """What forms of this browser carry."""
        return (await self.page("/")).form("/theme").fields["token"]
