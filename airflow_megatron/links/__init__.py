"""Links from tasks to other pages."""
