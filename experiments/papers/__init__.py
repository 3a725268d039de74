"""The tables of papers, run cell by cell and set beside ours."""
