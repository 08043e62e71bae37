"""Message trace: what became of each message, told by who sent it and by who got it."""
