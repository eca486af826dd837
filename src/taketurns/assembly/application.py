"""An application: the handlers that a program registers, and its way to the cell where their tasks wait."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID

from taketurns.assembly.handler import RESERVED_PARAMETERS, Handler, seconds
from taketurns.assembly.schedule import Declared, Timing
from taketurns.engine.errors import ConfigurationError
from taketurns.engine.registry import Registry
from taketurns.engine.retry import Backoff
from taketurns.engine.schedule import Missed
from taketurns.engine.task import PassReport, Status

if TYPE_CHECKING:
    from types import TracebackType

    from taketurns.assembly.client import Client
    from taketurns.assembly.state import TaskState
    from taketurns.execution.context import Context
    from taketurns.settings import Settings

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

PASS_TASKS: Final = 100
EXAMPLES: Final = "examples.handlers:tt"


class TaskOptions(TypedDict, total=False):
    """What is said of a type of task: the defaults of its tasks, and how a failed attempt is tried again.

    `retries` is how often at most; `timeout`, seconds or a timedelta, is how long an attempt may take.
    """

    name: str
    queue: str
    priority: int
    retries: int
    timeout: float | timedelta | None
    backoff: Backoff


@dataclass(slots=True)
class StandIn:
    """Where every application of the process is led during a test, and which of them went there."""

    settings: Settings
    client: Client
    applications: set[Taketurns] = field(default_factory=set)


_stand_in: StandIn | None = None


@contextmanager
def standing_in(stand_in: StandIn) -> Iterator[None]:
    """Lead every application of the process elsewhere, for a while."""
    global _stand_in  # noqa: PLW0603  applications are made before a test, and apart from it
    before, _stand_in = _stand_in, stand_in
    try:
        yield
    finally:
        _stand_in = before


class Taketurns:
    """The handlers of a program, and where their tasks go.

    Settings come from the environment (`TAKETURNS_…`) when they are first needed; arguments override them. Connections
    are made when they are first needed, and close with their event loop or, sooner, by `close()`; it is an async
    context manager as well.
    """

    def __init__(self, *, database_url: str | None = None, schema: str | None = None) -> None:
        self.registry = Registry()
        self.schedules: list[Declared] = []
        self._overrides = {"database_url": database_url, "schema_name": schema}

    @overload
    def task(
        self, handler: Callable[Concatenate[Context, Parameters], Result], /
    ) -> Handler[Concatenate[Context, Parameters], Parameters, Result]: ...

    @overload
    def task(self, handler: Callable[Parameters, Result], /) -> Handler[Parameters, Parameters, Result]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Definition: ...

    def task(self, handler: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function, async or sync, as the handler of a type of task; its parameters are the payload.

        A parameter annotated `Context`, best the first, is given the context of the attempt instead.
        Raises ConfigurationError.
        """
        definition = Definition(self, options)
        return definition if handler is None else definition(handler)

    def schedule(
        self,
        expression: str,
        *,
        time_zone: str = "UTC",
        company: str | UUID | Iterable[str | UUID] | None = None,
        name: str | None = None,
        missed: Missed | Literal["skip", "last", "all"] = Missed.LAST,
    ) -> Timing:
        """Declare a schedule of one company or several (ids or slugs), or of every one.

        Call what is returned with the handler and its arguments, or put it above a handler that needs none. It is
        called as its type unless it has a `name`. Takes effect with `apply_schedules`, which a worker does as it
        starts. Raises InvalidOption.
        """
        return Timing(
            self.schedules, expression=expression, time_zone=time_zone, company=company, name=name, missed=missed
        )

    async def apply_schedules(self) -> None:
        """Bring the schedules of companies up to what the code declares; again changes nothing.

        What people changed of them by the API stays until the code says something else, a pause even then. Those that
        the code declares no more are deleted, if they are of a type of this application.
        A company that comes later gets its schedules when this is done again. Raises UnknownCompany and Unavailable.
        """
        await self.client.apply_schedules(self.schedules, types=self.registry.names)

    @property
    def settings(self) -> Settings:
        """The settings in use: those of the environment, with the arguments of this application."""
        return _stand_in.settings if _stand_in else self._settings

    def adopt(self, settings: Settings) -> Settings:
        """Go by these settings and not the environment's; answers them with the arguments of this application."""
        given = {name: value for name, value in self._overrides.items() if value is not None}
        self._settings = settings.model_copy(update=given)
        vars(self).pop("_client", None)  # it goes by the settings before
        return self._settings

    @property
    def client(self) -> Client:
        """What enqueues the tasks of this application."""
        if _stand_in is None:
            return self._client
        _stand_in.applications.add(self)
        return _stand_in.client

    @cached_property
    def _settings(self) -> Settings:
        from taketurns import settings  # noqa: PLC0415

        return self.adopt(settings.current())

    @cached_property
    def _client(self) -> Client:
        from taketurns.assembly.client import Client  # noqa: PLC0415

        return Client(self._settings)

    async def cancel(self, company: str | UUID, task_id: UUID) -> Status | None:
        """End an unfinished task as cancelled; a handler that runs is told by its worker.

        Answers `cancelled`, the other terminal status that the task has had already, or None when the company has no
        such task.
        """
        return await self.client.cancel(str(company), task_id)

    async def get(self, company: str | UUID, task_id: UUID) -> TaskState | None:
        """A task as it stands, or None when the company has no such task."""
        return await self.client.get(str(company), task_id)

    async def run_once(self, *, limit: int | None = None, drain: bool = False, name: str | None = None) -> PassReport:
        """One bounded pass of processing in this process, as `taketurns worker --once` makes it; answers what it did.

        It claims 100 tasks at most unless `limit` says otherwise; with `drain`, it ends when nothing is due any more.
        `name` is for its heartbeat. Raises Unavailable when the pass could not be made.
        """
        from taketurns.assembly.worker import Declare  # noqa: PLC0415
        from taketurns.worker.rounds import keep_once  # noqa: PLC0415

        await keep_once(Declare(self))
        most = limit if drain else limit or PASS_TASKS
        return await self.client.run_once(self.registry, limit=most, drains=drain, name=name)

    def run_once_sync(self, *, limit: int | None = None, drain: bool = False, name: str | None = None) -> PassReport:
        """Like `run_once`, for code that cannot await."""
        from taketurns.assembly import background  # noqa: PLC0415

        return background.run(self.run_once(limit=limit, drain=drain, name=name))

    async def close(self) -> None:
        """Send the wake-ups that are due and close the connections; what is done later opens new ones."""
        if "_client" in vars(self):
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Definition:
    """What was said of a type with `@tt.task(...)`, waiting for its handler."""

    def __init__(self, application: Taketurns, options: TaskOptions) -> None:
        self._application = application
        self._options = options

    @overload
    def __call__(
        self, handler: Callable[Concatenate[Context, Parameters], Result], /
    ) -> Handler[Concatenate[Context, Parameters], Parameters, Result]: ...

    @overload
    def __call__(self, handler: Callable[Parameters, Result], /) -> Handler[Parameters, Parameters, Result]: ...

    def __call__(self, handler: Callable[..., Any], /) -> Any:
        from taketurns.execution.context import Context  # noqa: PLC0415

        options: dict[str, Any] = dict(self._options)
        if "retries" in options:
            options["max_retries"] = options.pop("retries")
        if "timeout" in options:
            options["timeout_seconds"] = seconds(options.pop("timeout"))
        task_type = self._application.registry.add(handler, context_type=Context, **options)
        for name in RESERVED_PARAMETERS.intersection(task_type.payload_model.model_fields):
            hint = ": the company of a task is `context.company_id`" if name == "company" else ""
            raise ConfigurationError(
                f"type {task_type.name!r}: a parameter cannot be called {name!r}, as an argument of enqueue is{hint}"
            )
        return Handler(self._application, task_type)


def load_registry(settings: Settings) -> Registry:
    """The handlers of the application that the settings name."""
    return load_application(settings.app).registry


def load_application(name: str | None) -> Taketurns:
    """The application that `module:variable` names; the module may be in the working directory.

    Without a name: the examples in a checkout of Taketurns, elsewhere an application that knows no type.
    Raises ConfigurationError, which says what is wrong with the name.
    """
    if name is not None:
        _look_for_modules_in(Path.cwd())
        return _load(name)
    checkout = Path(__file__).parents[3]
    if not (checkout / "examples" / "handlers.py").is_file():
        return Taketurns()
    _look_for_modules_in(checkout)
    return _load(EXAMPLES)


def _look_for_modules_in(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _load(name: str) -> Taketurns:
    module_name, _, variable = name.partition(":")
    if not module_name or not variable:
        raise ConfigurationError(f"an application is named as module:variable, such as shop.tasks:tt, not {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"cannot load {name!r}: there is no module {error.name!r}, neither installed nor in {Path.cwd()}"
        ) from error
    application = getattr(module, variable, None)
    if not isinstance(application, Taketurns):
        there = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, Taketurns)]
        raise ConfigurationError(
            f"cannot load {name!r}: {module_name} has no Taketurns called {variable!r}, "
            + (f"but {' and '.join(there)}" if there else "write `tt = Taketurns()` in it")
        )
    return application
