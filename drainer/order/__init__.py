"""Slots: which keys they have, their blobs in pieces; and rows that are applied in order."""
