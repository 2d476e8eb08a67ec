"""Runs as one HTML page that opens from disk: sections of what was found, charts as SVG, and the numbers of each as a
table. Nothing on a page comes from anywhere else, and all of it can be read without JavaScript."""
