"""Messages, the server's conversation, measurements and audits of a deployed federation."""
