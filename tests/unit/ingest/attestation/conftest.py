"""Nitro documents under authorities that the test made."""

from collections.abc import Callable

import pytest

from ingest.attestation.testing import Authorities


@pytest.fixture(scope="session")
def authorities() -> Authorities:
    return Authorities()


@pytest.fixture
def document(authorities: Authorities) -> Callable[..., bytes]:
    return authorities.document
