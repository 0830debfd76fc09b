"""Cerebro: train Keras models where the rows already live, inside the database."""

__version__ = "0.1.0"
