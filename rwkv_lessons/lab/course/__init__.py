"""What a learner calls in a notebook: check, hint, predict; exercises, and what is kept of them."""
