"""What no run can undercut."""
