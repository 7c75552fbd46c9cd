"""Files in and out: photos, matches, features, pair lists. One reader per kind of file."""
