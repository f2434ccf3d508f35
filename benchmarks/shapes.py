"""The shapes of published networks that benchmarks give random weights."""

SMDM_1028M = {"vocab": 32000, "width": 1792, "layers": 20, "heads": 14, "mlp": 7168}  # AR-1028M's too
