# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What every test gets: reproducible hypothesis examples without a database, and proofs left out
unless asked for and told in a table."""

import os

import hypothesis
import pytest

# deadline: two workers and a C++ build share two cores, so wall-clock time per example says
# nothing.
hypothesis.settings.register_profile(
    "kelp", deadline=None, database=None, derandomize="KELP_SEED" not in os.environ
)
hypothesis.settings.load_profile("kelp")


def pytest_collection_modifyitems(config, items):
    """Without a -m of its own, a run leaves out ``slow`` tests and every ``prove`` test that is not
    also ``quick``."""
    if (
        config.option.markexpr
        or config.option.keyword
        or any("::" in argument for argument in config.args)
    ):
        return
    left_out = [
        item
        for item in items
        if item.get_closest_marker("slow")
        or (item.get_closest_marker("prove") and not item.get_closest_marker("quick"))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    """One line for each proof that ran: kind, depth, result, covers, planted bugs."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    rows = [
        value for report in reports for name, value in report.user_properties if name == "proof"
    ]
    if rows:
        from kelp_verif.formal.proofs import table

        terminalreporter.section("proofs")
        for line in table(rows):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def repo_root(pytestconfig):
    """The checkout's top directory."""
    return pytestconfig.rootpath
