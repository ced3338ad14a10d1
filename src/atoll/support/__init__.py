"""What every room uses: errors, seeds, files, locks, processes."""
