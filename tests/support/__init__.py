"""What tests are made of, by subject: see README.md beside this folder."""
