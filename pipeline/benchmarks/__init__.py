"""Measurements that compare mechanisms; each is a command of ``scripts/``."""
