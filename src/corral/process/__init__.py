"""What the processes of Corral share: options, logs, the data folder, and who holds a port."""
