"""Pictures of finished runs as PNG and SVG, by `fkgsec plot`."""
