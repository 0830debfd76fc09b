"""What was measured is shown at the end, whether the tests passed or not."""


def pytest_terminal_summary(terminalreporter):
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    if reports:
        terminalreporter.section("figures")
    for report in reports:
        for name, value in report.user_properties:
            terminalreporter.write_line("%8s  %s" % (value, name))
