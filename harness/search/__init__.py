"""Search: plans are drawn, run and judged; what failed is confirmed, made smaller and kept."""
