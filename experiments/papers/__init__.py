"""Tables of papers, run cell by cell and compared with ours."""
