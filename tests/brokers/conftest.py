"""Failures inside the shared suites are told as those in test modules are."""

import pytest

pytest.register_assert_rewrite("tests.brokers.contract", "tests.brokers.cell")
