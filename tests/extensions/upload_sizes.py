"""A section of the report in one file: MiB that all clients of a run upload in a round."""

from fkgsec.experiments.reporting.html.sections import Column, Section, Sheet


def sheets(runs):
    rows = tuple((run.name, run.record.bytes.up / (len(run.record.rounds) - 1)) for run in runs)
    return [Sheet("Uploads of all clients in one round", (Column("run"), Column("MiB", "MiB")), rows)]


UPLOAD_SIZES = Section("Upload sizes", sheets)
