"""`fkgsec view`: the runs of a folder as pages in a browser."""
