"""A pool of states that calls read and write in place: what one may be, and how it is rounded."""
