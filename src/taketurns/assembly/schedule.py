"""A schedule as code declares it: when, for whom, and with which arguments its handler runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar
from uuid import UUID

from taketurns.assembly.handler import Handler
from taketurns.engine import schedule
from taketurns.engine.errors import ConfigurationError, InvalidOption
from taketurns.engine.schedule import Cron, Missed
from taketurns.engine.task import NewTask

Call = ParamSpec("Call")
Payload = ParamSpec("Payload")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule of these companies, or of every one (None)."""

    name: str
    companies: frozenset[str] | None
    cron: Cron
    missed: Missed
    task: NewTask


class Timing:
    """What was said with `tt.schedule(...)`, waiting for its handler."""

    def __init__(
        self,
        declared: list[Declared],
        *,
        expression: str,
        time_zone: str,
        company: str | UUID | Iterable[str | UUID] | None,
        name: str | None,
        missed: str,
    ) -> None:
        self._declared = declared
        self._cron = schedule.read(expression, time_zone)
        self._companies = _names(company)
        self._name = name
        if missed not in set(Missed):
            raise InvalidOption("missed", f"must be one of {', '.join(Missed)}")
        self._missed = Missed(missed)

    def __call__(
        self, handler: Handler[Call, Payload, Result], /, *args: Payload.args, **arguments: Payload.kwargs
    ) -> Handler[Call, Payload, Result]:
        """Declare it with this handler and these arguments, given by name. Raises ConfigurationError when its name is
        taken, InvalidPayload and InvalidOption."""
        if args:
            raise TypeError("the arguments of a handler are given by name: tt.schedule(…)(send_report, kind='short')")
        name = self._name or handler.type.name
        for other in self._declared:
            if other.name == name and _overlap(other.companies, self._companies):
                raise ConfigurationError(f"schedule {name!r} is declared twice: give one of the two another name")
        task = handler.repeated(arguments)
        self._declared.append(Declared(name, self._companies, self._cron, self._missed, task))
        return handler


def _names(company: str | UUID | Iterable[str | UUID] | None) -> frozenset[str] | None:
    if company is None:
        return None
    return frozenset([str(company)] if isinstance(company, str | UUID) else map(str, company))


def _overlap(some: frozenset[str] | None, others: frozenset[str] | None) -> bool:
    return some is None or others is None or bool(some & others)
