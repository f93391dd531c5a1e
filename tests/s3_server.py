"""A real S3-compatible server (moto's) on a free loopback port."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer


@contextmanager
def s3_server(bucket: str, host: str = "127.0.0.1") -> Iterator[dict[str, str]]:
    """Serve one bucket; the variables with which its clients find it."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
    server = ThreadedMotoServer(host, 0, verbose=False)
    server.start()
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
    }
    try:
        s3_client(environment).create_bucket(Bucket=bucket)
        yield environment
    finally:
        server.stop()


def s3_client(environment: dict[str, str]) -> Any:
    """A client of that server, whatever this process's own variables say."""
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    )
