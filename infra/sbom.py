"""`python -m infra.sbom [--check]`: the locks' bill of materials, `sbom.json`; or whether it is theirs.

CycloneDX, the same bytes for the same locks. The lock names each package's files by hash. A line that is not
`NAME==VERSION` with its hashes, such as an address, is refused: who answers there would decide what it means.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Annotated, Final

import typer
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from common import program
from common.atomic import write_file

PROJECT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ("requirements.lock", "requirements-triton.lock", "infra/setup/uv.lock")
FILE: Final = "sbom.json"
_PACKAGE: Final = re.compile(
    r"([a-z0-9][a-z0-9-]*)==([A-Za-z0-9.!+]+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
)


def packages_of(lock: Path) -> dict[str, str]:
    """Versions of a lock's packages by name.

    Raises:
        ValueError: a line is no package's name, version and hashes, or one stands there twice.
    """
    text = lock.read_text()
    found = _PACKAGE.findall(text)
    rest = [line for line in _PACKAGE.sub("", text).splitlines() if line and not line.startswith("#")]
    if rest:
        raise ValueError(f"{lock.name}: not a package with its version and hashes: {rest[0].strip()[:80]}")
    versions = dict(found)
    if not found or len(versions) < len(found):
        raise ValueError(f"{lock.name}: it is empty, or names a package twice")
    return versions


def bill_of_materials(locks: list[Path]) -> str:
    """Return CycloneDX JSON of all packages of the locks."""
    packages = sorted({pair for lock in locks for pair in packages_of(lock).items()})
    components = [
        Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            purl=(purl := PackageURL("pypi", name=name, version=version)),
            bom_ref=str(purl),
        )
        for name, version in packages
    ]
    root = Component(type=ComponentType.APPLICATION, name="swiftqueue", bom_ref="swiftqueue")
    bom = Bom(
        components=components,
        # Of its content, not of when and where it was made.
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, repr(packages)),
        metadata=BomMetaData(component=root),
    )
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.register_dependency(root, components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def main(
    check: Annotated[bool, typer.Option("--check", help="only say whether it is that of the locks")] = False,
) -> None:
    """Write the locks' bill of materials."""
    text = bill_of_materials([PROJECT / lock for lock in LOCKS])
    target = PROJECT / FILE
    if not check:
        write_file(target, text)
    elif not target.is_file() or target.read_text() != text:
        raise ValueError(f"{FILE} is not that of the locks; run: make lock")


if __name__ == "__main__":
    program.run("sbom", main)
