"""How many examples a property test tries is the profile's to say (tests/conftest.py); a fifth of them where each costs
a tenth of a second."""

from __future__ import annotations

from hypothesis import settings

FEW = settings(max_examples=max(5, settings().max_examples // 5))
