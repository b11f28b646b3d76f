"""Review: questions about unknown labels, suspicious labels, and answers."""
