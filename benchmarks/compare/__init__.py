"""What chainstore is measured beside: each peer saves and gives back the same states, on the same file system."""
