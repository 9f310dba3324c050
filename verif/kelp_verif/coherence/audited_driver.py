# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A caching host's endpoint, audited: the golden model judges what a free-running device decides
while pages are called back (docs/coherence.md). What agents read is judged by their host."""

from __future__ import annotations

from kelp_golden.audit.stream import Audit, FrameRecord, ResultRecord
from kelp_golden.endpoint import Endpoint
from kelp_rtl.control import Descriptor, QueueParameters
from kelp_rtl.device import RunRules
from kelp_rtl.program import Program, Result
from kelp_rtl.replay.rows import audit_records
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES

from ..endpoint.audited_tenants import tell
from .endpoint_bench import CachingDriver

__all__ = ["AuditedDriver"]

#: Registers that the golden model's tracker has, too.
_HEARD = {"low_water", "reserve"}
#: Of a request: what it writes is not looked at.
_ANY = 0, bytes(LINE_BYTES), -1


class AuditedDriver(CachingDriver):
    """:class:`CachingDriver` whose commit stream is judged as it goes: outcomes, page words, frame
    entries, victims, sweeps, scores. An AssertionError names what differs.
    """

    def __init__(self, config: Config, *, driver=(), **options):
        self._new_audit(config)
        driver = dict(driver) | {"rules": RunRules(max_skip=0, record_hot_reads=True)}
        super().__init__(config, driver=driver, **options)

    def _new_audit(self, config):
        self._audit = Audit(config, Endpoint(config), {}, lambda _: _ANY)
        self._audit.begin(1)

    def reset(self, cycles: int = 2, *, seed: int | None = None) -> None:
        """The golden model begins anew, too."""
        super().reset(cycles, seed=seed)
        self.take_commits()
        self._new_audit(self.config)

    def write_registers(self, values: dict[str | int, int], *, ld_id: int = 0) -> None:
        """The golden model hears of what decisions depend on."""
        for name in _HEARD & values.keys():
            setattr(self._audit.endpoint.tracker, name, values[name])
        super().write_registers(values, ld_id=ld_id)

    def open_session(
        self,
        session: int,
        shape: Descriptor,
        parameters: QueueParameters = QueueParameters(),
        *,
        owner: int = 0,
    ) -> None:
        self.settle()
        tell(self._audit, session, shape, parameters, owner)
        super().open_session(session, shape, parameters, owner=owner)

    def idle(self, cycles: int) -> None:
        super().idle(cycles)
        self._judge()

    def run(self, program: Program, **options) -> Result:
        result = super().run(program, **options)
        self._judge()
        return result

    def finish(self) -> None:
        """Everything that the golden model did was committed."""
        self.settle()
        self._audit.finish()
        self._judge()

    def _judge(self):
        audit = self._audit
        for record in audit_records(self.take_commits()):
            self.judged += 1
            if isinstance(record, ResultRecord):
                audit.result(record)
            elif isinstance(record, FrameRecord):
                audit.frame(record)
            else:
                audit.score(record)
        assert not audit.count, [str(m) for m in audit.mismatches[:3]]
