"""Datasets around one other: functions on its elements, repetitions, ends of epochs, shuffles, logs."""
