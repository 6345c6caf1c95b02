"""How many examples a property test tries is the profile's to say (tests/conftest.py): FEW, a fifth of them, where each
costs a tenth of a second; VERY_FEW, a fifth of these, where each costs a second."""

from __future__ import annotations

from hypothesis import settings

FEW = settings(max_examples=max(5, settings().max_examples // 5))
VERY_FEW = settings(max_examples=max(2, settings().max_examples // 25))
