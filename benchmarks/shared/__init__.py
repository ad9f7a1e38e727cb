"""What the commands of several questions share."""
