"""The reference page of a scenario's keys, made from the classes that check them.

`python -m swiftqueue.laboratory.scenarios.document > docs/SCENARIOS.md`
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final, get_args

from swiftqueue.common.allowed_values import in_signs
from swiftqueue.laboratory.scenarios.checked import ScenarioPart
from swiftqueue.laboratory.scenarios.schema import Scenario

COMMENT: Final = re.compile(r"^    (\w+): .*?  # (.*)$", re.M)  # a field and the comment behind it
ABOVE: Final = re.compile(r"((?:^    # .*\n)+)    (\w+): ", re.M)  # a comment and the field below it
HEAD: Final = """\
# Scenarios: the keys

A scenario is `simulation/scenarios/NAME.yaml`, a study's `scenarios/NAME.yaml`, or a file of your own;
`swiftqueue lab scenarios` lists them. A wrong value is refused in one line that names file and key, before
anything is built. `extends: OTHER`, or a list, takes missing keys from other scenarios, which lie beside the
file or in the project; the last scenario of a list wins. [The controls](LABORATORY.md#controls) and
[our queue discs](../simulation/doc/queue-discs.md) have pages of their own. Attributes of
`ns3::DualPi2QueueDisc` override the profile's. Any other disc has no profile, so its scenario names only one
profile, and its oracles are not run.

Each key stands with the values that it takes, its default and its meaning. S1 is the first sender.
`python -m swiftqueue.laboratory.scenarios.document > docs/SCENARIOS.md` makes this page."""


def parts(part: Any) -> Iterator[type[ScenarioPart]]:
    """Yield a scenario's part, and the parts in the types of its fields."""
    if inspect.isclass(part) and issubclass(part, ScenarioPart):
        yield part
        for field in part.model_fields.values():
            yield from parts(field.annotation)
    for inner in get_args(part):
        yield from parts(inner)


def reference() -> str:
    """Return docs/SCENARIOS.md."""
    lines = HEAD.splitlines()
    for part in dict.fromkeys(parts(Scenario)):
        source = inspect.getsource(part)
        above = {key: " ".join(re.findall(r"# (.*)", said)) for said, key in ABOVE.findall(source)}
        meanings = dict(COMMENT.findall(source)) | above
        schema = part.model_json_schema()["properties"]
        about = " ".join((part.__doc__ or "").split())
        lines += ["", f"## {part.__name__}", "", *textwrap.wrap(about, 118), ""]
        for key in part.model_fields:
            values = in_signs(schema[key]) if "$ref" not in schema[key] else "a mapping"
            default = f", default {json.dumps(schema[key]['default'])}" if "default" in schema[key] else ""
            said = f"- **`{key}`** ({values}{default})" + (f": {meanings[key]}" if key in meanings else "")
            lines += textwrap.wrap(said, 118, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
