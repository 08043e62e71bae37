"""The tests of rocketbox."""
