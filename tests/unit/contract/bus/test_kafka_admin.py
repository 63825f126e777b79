"""Threads that ask a cluster through one client, which any of them may find broken."""

from __future__ import annotations

import threading

import pytest

from contract.bus.kafka import client as clients
from contract.bus.kafka.client import Admin
from contract.errors import TransportError


class Client:
    """Answers until it is closed; then it says what kafka-python 3.0.12 does."""

    def __init__(self) -> None:
        self.closed = False

    def ask(self) -> str:
        if self.closed:
            raise RuntimeError("NetworkSelector closed!")
        return "yes"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    monkeypatch.setattr(clients, "connect", lambda *_: Client())
    return Admin({})


def test_a_client_that_another_thread_dropped_is_replaced(admin: Admin) -> None:
    asked: list[Client] = []

    def question(client: Client) -> str:
        asked.append(client)
        if len(asked) == 1:
            other = threading.Thread(target=admin._drop, args=(client,))
            other.start()
            other.join()
        return client.ask()

    assert admin.ask("asking", question) == "yes"
    assert [client.closed for client in asked] == [True, False]


def test_a_bus_that_is_closed_while_somebody_asks_says_so(admin: Admin) -> None:
    def question(client: Client) -> str:
        admin.close()
        return client.ask()

    with pytest.raises(TransportError) as caught:
        admin.ask("asking", question)
    assert caught.value.reason == "closed"


def test_a_defect_is_not_taken_for_a_client_that_was_dropped(admin: Admin) -> None:
    def question(client: Client) -> str:
        del client
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        admin.ask("asking", question)
