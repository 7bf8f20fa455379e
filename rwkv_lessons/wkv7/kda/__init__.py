"""WKV-7's inputs, made of those of Kimi's delta attention: see docs/kda.md."""
