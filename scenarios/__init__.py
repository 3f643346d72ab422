"""Named plans, as data: one TOML file each. ``harness.scenario`` reads them; ``nowedge list`` shows them."""
