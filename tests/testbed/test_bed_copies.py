"""What the bed's Python copies of C++ that it drives or stands beside, each held against its source."""

from __future__ import annotations

import re
from pathlib import Path

from swiftqueue.testbed.host.marking import UNSAID
from swiftqueue.testbed.host.run import PROFILES
from swiftqueue.testbed.host.scenario import RULE, queue_of

NAMES = {"CouplingFactor": "coupling", "LStep": "l_step_ms", "MaxSize": "max_bytes"}
BUFFER = 3_000_000


def captured(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(), re.DOTALL)
    assert found, f"{path.name} has no {pattern}"
    return found[1]


def test_a_profiles_queue_is_the_simulators(project: Path) -> None:
    source = project / "simulation" / "helper" / "queue-profiles.cc"
    attributes = captured(source, r"DiscAttributes UncoupledProfile\(.*?return {(.*?)\n  };")
    step_ms = captured(project / "simulation" / "programs" / "laboratory" / "run.cc", r"kLStepMs = (\d+);")
    simulated: dict[str, object] = {}
    for name, value in re.findall(r"{\"(\w+)\", (.*?)},", attributes):
        key = NAMES.get(name, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
        said = {
            "limit": BUFFER,
            'std::to_string(2 * uint64_t{bufferBytes}) + "B"': 2 * BUFFER,
            'std::to_string(lStep.GetNanoSeconds()) + "ns"': step_ms,
        }.get(value, value.strip('"').lower())
        simulated[key] = float(said) if re.fullmatch(r"[\d.]+", str(said)) else said
    assert queue_of("uncoupled", BUFFER) == simulated
    rfc9332 = captured(source, r"DiscAttributes Rfc9332Profile\(.*?return {(.*?);")
    assert re.findall(r"\"(\w+)\",", rfc9332) == ["MaxSize"]
    assert queue_of("rfc9332", BUFFER) == {"max_bytes": BUFFER}
    assert set(PROFILES) == {"rfc9332", "uncoupled"}


def test_what_a_run_does_not_say_means_the_same_to_the_simulator(project: Path) -> None:
    run = project / "simulation" / "programs" / "laboratory" / "run.cc"
    horizon = captured(project / "feature_store" / "events" / "sizes.h", r"kHorizon = (\d+);")
    simulated: dict[str, object] = {
        name: float(captured(run, rf'node.Has\("{name}"\) \? [^:]*? : (\w+)').replace("kHorizon", horizon))
        for name in UNSAID
        if name != "guard"
    }
    assert captured(run, r'(node.Has\("guard"\) && node\["guard"\].Text\(\) == "on")')  # else off
    assert simulated | {"guard": "off"} == UNSAID


def test_the_routers_rules_have_the_constants_that_a_scenario_is_checked_for(project: Path) -> None:
    rules = project / "testbed" / "router" / "rules.h"
    for value, constant in (
        (RULE["random"]["burst_packets"], "kBurstPackets"),
        (RULE["oracle"]["rate_us"], "kRateUs"),
    ):
        assert float(captured(rules, rf"{constant} = ([\d']+);").replace("'", "")) == value
