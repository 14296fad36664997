"""Static torch modules: each is the single definition that trains, calibrates and exports."""
