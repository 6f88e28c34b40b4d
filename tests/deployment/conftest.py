"""One federation with two SuperNodes for tests that leave it whole, and a maker for the rest."""

import pytest
from deployment.federation import Federation


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """A SuperLink and two registered SuperNodes, one with a warm worker; a third has a key only."""
    made = Federation(tmp_path_factory.mktemp("federation"), nodes=3)
    try:
        made.start_superlink()
        made.register(0, 1)
        made.start_node(0)
        made.start_node(1, config='worker="warm"')
        yield made
    finally:
        made.stop()


@pytest.fixture
def new_federation(tmp_path):
    """A function that makes a federation with nothing started; it is stopped after the test."""
    made: list[Federation] = []

    def make(nodes: int = 2, **options: str) -> Federation:
        made.append(Federation(tmp_path, nodes, **options))
        return made[0]

    yield make
    for one in made:
        one.stop()
