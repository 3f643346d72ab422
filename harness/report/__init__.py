"""Reports: verdicts and tables for people and for programs. A report runs nothing."""
