"""The monitor's database: the only SQL of Paceline."""
