"""Requests that steer the running drainer: `PUT /changefeed/<node id>/<command>` with a JSON object as its body.

The answer has the original's three keys (message, code, data). Its code is also the HTTP status: 200, 400 for a body
that cannot be used, 404 for another node or an unknown command, 409 if the drainer's state does not allow it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

from binlog.cluster import tso
from binlog.runtime.fields import Duration, Section, Tso
from binlog.runtime.http import Request, Response
from binlog.runtime.log import get_logger
from pydantic import Field, ValidationError

from drainer.pipeline import Pipeline
from drainer.service.scheduler import Scheduler
from drainer.service.status import CONFLICT, OK, result, steering_fields

BAD, UNKNOWN = 400, 404

_log = get_logger(__name__)


class Refusal(Exception):
    """A request that is not carried out. `code`: the HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Update(Section):
    """The body of update. A field that is not given stays as it is."""

    delay: Duration | None = Field(None, ge=timedelta(0))
    stop_at: Tso | None = Field(None, ge=0, lt=1 << 63)


class DecideDdl(Section):
    """The body of decide-ddl. `sql`: the statements that run instead, for replace."""

    job_id: int
    action: Literal["run-again", "skip", "replace"]
    sql: str | tuple[str, ...] = ()

    def statements(self) -> tuple[str, ...] | None:
        """As Decisions.decide takes them."""
        if self.action == "run-again":
            return None
        return (self.sql,) if isinstance(self.sql, str) else self.sql


class DecideTransaction(Section):
    """The body of decide-transaction."""

    commit_ts: int = Field(gt=0, lt=1 << 63)
    action: Literal["run-again", "skip"]


class SteeringApi:
    """Carries out the requests, on the event loop. `runs_text`: whether the destination runs statements of an
    operator."""

    def __init__(self, node_id: str, pipeline: Pipeline, scheduler: Scheduler, *, runs_text: bool = True) -> None:
        self._runs_text = runs_text
        self._node_id = node_id
        self._pipeline = pipeline
        self._scheduler = scheduler
        self._steering = scheduler.steering
        # The body (Section: none, or {}), and what is called with it and the client's name; that returns the message of
        # the answer, or raises Refusal.
        self._commands: Mapping[str, tuple[type[Section], Callable[[Any, str], str]]] = {
            "pause": (Section, self._pause),
            "resume": (Section, self._resume),
            "update": (Update, self._update),
            "decide-ddl": (DecideDdl, self._decide_ddl),
            "decide-transaction": (DecideTransaction, self._decide_transaction),
        }

    async def handle(self, request: Request) -> Response:
        try:
            message = self._handle(request)
        except Refusal as refusal:
            return result(str(refusal), refusal.code, status=refusal.code)
        return result(message, OK, steering_fields(self._steering))

    def _handle(self, request: Request) -> str:
        node_id, name = request.path["node_id"], request.path["command"]
        if node_id != self._node_id:
            raise Refusal(UNKNOWN, f"invalid nodeID {node_id}, this drainer's nodeID is {self._node_id}")
        command = self._commands.get(name)
        if command is None:
            raise Refusal(UNKNOWN, f"invalid command {name}: one of {', '.join(self._commands)} was expected")
        body, run = command
        return run(body_of(request.body, body), request.peer)

    def _pause(self, _body: Section, who: str) -> str:
        if self._steering.paused:
            return f"the changefeed is already paused, by {self._steering.paused_by}"
        self._steering.pause(who)
        _log.warning("changefeed paused", who=who, position=self._pipeline.position_ts)
        return "the changefeed is paused: after the batch under way none begins until resume, or a restart"

    def _resume(self, _body: Section, who: str) -> str:
        if not self._steering.paused:
            return "the changefeed is not paused"
        _log.warning("changefeed resumed", who=who, paused_by=self._steering.paused_by)
        self._steering.resume()
        return "the changefeed is resumed"

    def _update(self, body: Update, who: str) -> str:
        if body.delay is None and body.stop_at is None:
            raise Refusal(BAD, "give delay, stop-at, or both")
        if body.stop_at is not None:
            why = why_not_stop_at(body.stop_at, self._pipeline, self._scheduler.batches.end_ts)
            if why:
                raise Refusal(CONFLICT, why)
            self._steering.stop_at_ts = body.stop_at
        if body.delay is not None:
            self._steering.delay_ms = body.delay // timedelta(milliseconds=1)
        steering = self._steering
        _log.warning("changefeed updated", who=who, delay_seconds=steering.delay_ms / 1000, stop_at=steering.stop_at_ts)
        return "the changefeed is updated; a restart reads delay and stop-at from the configuration again"

    def _decide_ddl(self, body: DecideDdl, who: str) -> str:
        if (body.action == "replace") != bool(body.sql):
            raise Refusal(BAD, "sql: it must be given with action replace, and only with it")
        if not all(map(str.strip, body.statements() or ())):
            raise Refusal(BAD, "sql: a statement is empty")
        if body.sql and not self._runs_text:
            raise Refusal(CONFLICT, "sql: this destination is changed as the job says, not by text: run again, or skip")
        refused = self._pipeline.decisions.refused
        if refused is None or refused.job_id != body.job_id:
            raise Refusal(CONFLICT, f"job-id {body.job_id}: {self._waiting()}")
        _log.warning("DDL decided", who=who, job_id=body.job_id, action=body.action, sql=body.sql)
        self._pipeline.decisions.decide(body.statements())
        return f"DDL job {body.job_id}: {body.action}"

    def _decide_transaction(self, body: DecideTransaction, who: str) -> str:
        commit_ts, decisions = body.commit_ts, self._pipeline.decisions
        refused = decisions.refused
        waits = refused is not None and not refused.job_id and refused.commit_ts == commit_ts
        if body.action == "run-again" and not waits:
            raise Refusal(CONFLICT, f"commit-ts {commit_ts}: {self._waiting()}")
        if body.action == "skip":
            why = why_not_skip(commit_ts, self._pipeline)
            if why:
                raise Refusal(CONFLICT, f"commit-ts {commit_ts}: {why}")
            decisions.skip(commit_ts, who)
        _log.warning("transaction decided", who=who, commit_ts=commit_ts, action=body.action)
        if waits:
            decisions.decide(None)
        return f"transaction {commit_ts}: {body.action}; the log says when the position has passed it"

    def _waiting(self) -> str:
        refused = self._pipeline.decisions.refused
        return f"the drainer waits for a decision about {refused or 'nothing'}"


def why_not_stop_at(stop_at_ts: int, pipeline: Pipeline, planned_ts: int = 0) -> str:
    """Return why the drainer cannot end at this commit_ts; empty: it can, or 0 says that it does not end.
    `planned_ts`: the end of the last batch that is planned."""
    intent = pipeline.open_intent
    begun_ts = max(pipeline.position_ts, planned_ts, intent.until_ts if intent is not None else 0)
    if not 0 < stop_at_ts < begun_ts:
        return ""
    return (
        f"stop-at {stop_at_ts} ({tso.format_local(stop_at_ts)}): a batch up to {begun_ts} "
        f"({tso.format_local(begun_ts)}) is applied or begun: give a later one, or remove it"
    )


def why_not_skip(commit_ts: int, pipeline: Pipeline) -> str:
    """Return why a transaction cannot be skipped any more; empty: it can."""
    intent = pipeline.open_intent
    if commit_ts <= pipeline.position_ts:
        return f"everything up to {pipeline.position_ts} is applied"
    if intent is not None and commit_ts <= intent.until_ts:
        return (
            f"the batch ({intent.after_ts}, {intent.until_ts}] is begun, so rows of it may be applied, and it must be "
            f"finished as it was begun: let the destination take the row, for example by changing the row that it "
            f"conflicts with, and start the drainer again if it has stopped"
        )
    return ""


def body_of(body: bytes, model: type[Section]) -> Section:
    """Return the body as `model`. Raises Refusal, which names the field."""
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:  # the latter: nested too deeply
        raise Refusal(BAD, f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise Refusal(BAD, "the body: a JSON object was expected")
    try:
        return model.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            known = ", ".join(info.alias or name for name, info in model.model_fields.items())
            raise Refusal(BAD, f"{field}: unknown field; there is {known or 'none'}") from error
        raise Refusal(BAD, f"{field}: {problem['msg'].removeprefix('Value error, ')}") from error
