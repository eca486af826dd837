"""Whatever the API changes, an operator can change on a page; what is left out, is left out on purpose."""

from __future__ import annotations

import json
from typing import Final

from taketurns.dashboard.application import PAGES
from tests.api.test_documentation import SNAPSHOT

FORMS: Final = {
    "createTask": "/tasks",
    "cancelTask": "/companies/{company}/tasks/{task}/cancel",
    "retryTask": "/companies/{company}/tasks/{task}/retry",
    "rescheduleTask": "/companies/{company}/tasks/{task}/reschedule",
    "deleteTask": "/companies/{company}/tasks/{task}/delete",
    "createOperation": "/tasks/change",
    "abortOperation": "/companies/{company}/operations/{operation}/abort",
    "createCompany": "/companies",
    "changeCompany": "/companies/{company}/change",
    "deleteCompany": "/companies/{company}/delete",
    "createSchedule": "/schedules",
    "changeSchedule": "/companies/{company}/schedules/{schedule}/change",
    "deleteSchedule": "/companies/{company}/schedules/{schedule}/delete",
    "putPause": "/pauses",
    "liftPause": "/pauses/lift",
    "putPauseOfCompany": "/companies/{company}/pauses",
    "liftPauseOfCompany": "/companies/{company}/pauses/lift",
    "createKey": "/settings/keys",
    "rotateKey": "/settings/keys/{key}/rotate",
    "revokeKey": "/settings/keys/{key}/revoke",
    "createOperatorKey": "/settings/keys",
    "rotateOperatorKey": "/settings/keys/{key}/rotate",
    "revokeOperatorKey": "/settings/keys/{key}/revoke",
    "drainWorker": "/workers/{worker}/drain",
    "resumeWorker": "/workers/{worker}/resume",
    "stopWorker": "/workers/{worker}/stop",
}
LEFT_OUT: Final = {
    "createBatch": "people create one task at a time",
    "createJob": "there are no pages of jobs, whose record is short-lived",
    "cancelJob": "there are no pages of jobs, whose record is short-lived",
    "retryJob": "there are no pages of jobs, whose record is short-lived",
    "processTasks": "for machines that have no worker",
}


def changes() -> set[str]:
    """The operations of the API that change something, those of a company's own key left out, which are the same."""
    paths = json.loads(SNAPSHOT.read_text("utf-8"))["paths"]
    return {
        operation["operationId"]
        for operations in paths.values()
        for method, operation in operations.items()
        if method != "get" and "Own" not in operation["operationId"]
    }


def test_every_change_has_a_form_or_is_left_out_on_purpose() -> None:
    assert changes() == FORMS.keys() | LEFT_OUT.keys()
    assert FORMS.keys().isdisjoint(LEFT_OUT)
    posted = {path for method, path, _ in PAGES if method == "POST"}
    assert set(FORMS.values()) <= posted
