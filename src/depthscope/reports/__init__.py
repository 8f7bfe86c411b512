"""A record in, text, a picture or a page out."""
