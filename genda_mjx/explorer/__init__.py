"""The skill explorer: a stored run as one HTML file in which its body moves live."""
