"""What lash costs beside the bare driver, in one run: ``make bench``."""
