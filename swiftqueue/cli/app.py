"""The `swiftqueue` command: one typed entry point; heavy imports wait until a command needs them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from swiftqueue.cli.experiments import experiments_app
from swiftqueue.cli.laboratory import lab_app
from swiftqueue.cli.running import running_app
from swiftqueue.cli.traces import sender_app, trace_app
from swiftqueue.common.program import Commands, new_app, one_line
from swiftqueue.common.state import private_files
from swiftqueue.common.studies import declarations, named


class PrivateFiles(TyperCommand):
    """A command that writes state: only its owner may read the files that it and its child processes make."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        private_files()
        return super().invoke(ctx)


def _programs(about: str, kind: type[TyperCommand] = TyperCommand, **programs: str) -> typer.Typer:
    """Return commands that are functions of other modules (`MODULE:FUNCTION`), imported on demand."""

    class Programs(Commands):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(programs)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in programs:
                return None
            app = new_app()
            app.command(cmd_name, cls=kind)(named(programs[cmd_name]))
            return typer.main.get_command(app)

    return typer.Typer(no_args_is_help=True, help=about, cls=Programs)


app = new_app("Predict each packet's latency before it is sent and mark it for the better L4S queue.")


def _print_version(asked: bool) -> None:
    """Print the version and end, if `--version` was given."""
    if asked:
        from swiftqueue.version import version

        print(version())
        raise typer.Exit


VERSION = typer.Option(
    "--version", callback=_print_version, is_eager=True, help="print version, commit and schema"
)


@app.callback()
def options(version: Annotated[bool, VERSION] = False) -> None:
    """Take the options that stand before a command."""


for _command in running_app.registered_commands:  # all of them write state
    _command.cls = PrivateFiles
app.add_typer(running_app)
app.add_typer(experiments_app)
app.add_typer(trace_app, name="trace")
app.add_typer(
    _programs(
        "Run one part of the live loop by itself; `up --live` starts them all.",
        PrivateFiles,
        agent="swiftqueue.infra.local.sender:main",
        bed="swiftqueue.infra.local.bed_sender:main",
        forwarder="swiftqueue.serving.ingest.forwarder:main",
        ingest="swiftqueue.serving.ingest.server:main",
        keeper="swiftqueue.infra.local.keeper:main",
        mlflow="swiftqueue.infra.local.mlflow_server:main",
        page="swiftqueue.infra.monitoring.page.server:main",
    ),
    name="part",
)
app.add_typer(
    _programs(
        "Look at the loop: its live page, and Prometheus with the dashboard.",
        dashboard="swiftqueue.infra.monitoring.dashboard:main",
        page="swiftqueue.infra.local.live_page:print_address",
        picture="swiftqueue.infra.monitoring.picture:main",
        prometheus="swiftqueue.infra.local.prometheus:main",
    ),
    name="monitor",
)
app.add_typer(
    _programs(
        "Send UDP packets that are really marked, and receive them.",
        send="swiftqueue.serving.agent.marking.udp_command:send",
        echo="swiftqueue.serving.agent.marking.udp_command:echo",
    ),
    name="udp",
)
app.add_typer(
    _programs(
        "Run the test bed: a real kernel's packets through a router with DualPI2.",
        check="swiftqueue.testbed.host.command:check",
        clean="swiftqueue.testbed.host.command:clean",
        report="swiftqueue.testbed.host.command:report",
        run="swiftqueue.testbed.host.command:run",
        selfcheck="swiftqueue.testbed.host.command:selfcheck",
    ),
    name="bed",
)
app.add_typer(
    _programs(
        "Mark TCP packets in the kernel, by a tc/eBPF program on a device.",
        attach="swiftqueue.testbed.host.mark_command:attach",
        detach="swiftqueue.testbed.host.mark_command:detach",
        follow="swiftqueue.testbed.host.mark_command:follow",
        forget="swiftqueue.testbed.host.mark_command:forget",
        set="swiftqueue.testbed.host.mark_command:set_decision",
        status="swiftqueue.testbed.host.mark_command:status",
    ),
    name="mark",
)
app.add_typer(lab_app, name="lab")
app.add_typer(sender_app, name="sender")
for _study in declarations():
    app.add_typer(_programs(_study.HELP, **_study.FUNCTIONS), name=_study.NAME)


def main() -> None:
    """Run the command line: one clear line for an expected error, never a traceback."""
    with one_line("swiftqueue"):
        app()
