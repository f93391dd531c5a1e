"""Writes the KServe protocol as a serialised FileDescriptorSet, for `protoc --descriptor_set_in`.

    python serving/agent/predictors/kserve_descriptors.py FILE

The protocol comes out of the tritonclient package, so no proto is committed and the C++ client speaks the
Python client's version. The file is rewritten only when its content changes, because compiling it takes
half a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import service_pb2


def add(file: FileDescriptor, files: FileDescriptorSet) -> None:
    """Add a file after those it imports, each once."""
    if any(known.name == file.name for known in files.file):
        return
    for imported in file.dependencies:
        add(imported, files)
    file.CopyToProto(files.file.add())


def main() -> None:
    """Write the file named on the command line."""
    target, files = Path(sys.argv[1]), FileDescriptorSet()
    add(service_pb2.DESCRIPTOR, files)
    content = files.SerializeToString(deterministic=True)
    if not target.is_file() or target.read_bytes() != content:
        target.write_bytes(content)


if __name__ == "__main__":
    main()
