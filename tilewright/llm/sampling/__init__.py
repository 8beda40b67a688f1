"""Which token comes next: settings, filters, penalties, draws, and where a text stops."""
