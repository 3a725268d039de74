"""The errors that fkgsec expects. The command line prints each as one line and exits with its status."""


class FkgsecError(Exception):
    """Base of every expected error. `exit_status` is what the command line returns for it."""

    exit_status = 2


class DataError(FkgsecError):
    """A graph file, folder or download that cannot be used; the message gives file and line."""


class SpecError(FkgsecError):
    """An option or spec field with a value that is not allowed; the message names the field and what is allowed."""


class TrainingError(FkgsecError):
    """Training cannot go on (a non-finite loss, say); the message names round, step and client."""


class RunError(FkgsecError):
    """A run folder, checkpoint or record that is missing, damaged or belongs to another spec."""


class ThreatModelError(FkgsecError):
    """A threat model that does not fit the federation, such as a colluder that is not a client."""
