"""What deployed parties and their server are made of: messages, the conversation, the exchange, measurements, the record."""
