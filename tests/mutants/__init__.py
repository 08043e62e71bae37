"""Broken builds: rocketbox with one promise broken at a time, and the test that must notice.

``plugin`` switches one on in a run of pytest, ``__main__`` (``make mutants``) tries all of them.
"""
