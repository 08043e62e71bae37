"""Requests and replies: one service asks how punctual an airline is, another one answers."""
