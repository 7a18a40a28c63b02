"""Lets driver processes find the systems of these tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def system_path(monkeypatch):
    """Put this folder on the path of processes that are started."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
