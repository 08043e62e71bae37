"""The same again and again: tests under load and in another order each time, for what fails once in a thousand runs;
messages of each kind, for what is left behind by each of them."""
