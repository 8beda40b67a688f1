"""What formats have one operator for and we have several: functions over operators, for all front ends."""
