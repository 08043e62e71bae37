"""The same tests again and again, under load and in another order each time, for what fails once in a thousand runs."""
