"""A record as one self-contained HTML page: no network, no library, plots as inline SVG; for phones, dark and light."""
