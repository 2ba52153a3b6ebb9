"""On real time and over HTTP: the demo proxy beside another gateway and beside what proxies do without a table."""
