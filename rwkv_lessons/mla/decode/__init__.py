"""One query token a sequence against a cache of latents."""
