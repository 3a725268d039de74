"""Judgement of papers' tables and claims from records: admission of records, scoreboard, claims."""
