"""BlackJack: one player against the dealer, one 52-card deck a game, dealt by OpenSpiel behind OpenEnv."""
