"""Judging bits: the exact oracle of rules O5, O6 and O9."""
