"""A store in a temporary directory, sealed or not."""

import pytest

from tests.odb.stores import Store


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store", encrypted=False)


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def either_store(tmp_path, request) -> Store:
    return Store(tmp_path / "store", encrypted=request.param)
