"""Integrity of run folders: files are as written, and belong together."""
