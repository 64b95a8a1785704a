"""Predictions checked against real systems: calibrate, backtest, replay, published results."""
