"""What records say of the papers' tables and claims: which records count, the scoreboard, the claims."""
